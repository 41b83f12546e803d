"""Training runs: the loop, folders, checkpoints, metrics and clocks."""
