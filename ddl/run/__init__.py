"""The training loop, its folder, and the clocks of a run."""
