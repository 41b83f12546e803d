"""The cost model: seconds, bytes and integers only. NumPy and SciPy, no JAX."""
