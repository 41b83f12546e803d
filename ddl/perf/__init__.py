"""The cost model: predicts seconds and bytes from the shapes of a model and the rates of a cluster, without JAX.

Every function raises a one-line ValueError for invalid arguments.
"""
