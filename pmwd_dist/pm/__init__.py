"""The particle mesh: from white noise to particles at the end."""
