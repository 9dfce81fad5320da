"""What JAX lacks, and the native library.

The only importer of jaxdecomp_ops, and the only place that knows one version of JAX from another.
"""
