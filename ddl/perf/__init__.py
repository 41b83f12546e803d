"""The cost model: predicts seconds and bytes from the shapes of a model and the rates of a cluster, without JAX.

Arguments are checked where they enter: flags, configs, the files of clusters, and the sizes in a model's name.
"""
