"""Time stepping: one drift-kick-drift step, and its loops: forward, on the host and backward."""
