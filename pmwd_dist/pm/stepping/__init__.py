"""Time stepping: one drift-kick-drift step, and loops of it forwards, from the host and backwards."""
