"""Comparisons of algorithms over several seeds, and sweeps that tune their hyperparameters."""
