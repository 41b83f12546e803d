"""Several experiments in one config: comparisons, their grids, and sweeps."""
