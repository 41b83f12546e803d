"""The cost model: seconds, bytes and integers only. NumPy and SciPy, no JAX.

Every function raises ValueError, one line, for invalid arguments.
"""
