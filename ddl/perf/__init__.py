"""The cost model: predicts seconds and bytes from the shapes of a model and the rates of a cluster, without JAX.

Invalid arguments raise a ValueError with a one-line message.
"""
