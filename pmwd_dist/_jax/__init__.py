"""Features that JAX lacks, and the native library.

No other room imports jaxdecomp_ops or depends on the version of JAX.
"""
