"""Inputs of the cost model from this machine and from experiments, and its predictions for them."""
