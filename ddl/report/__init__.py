"""The report of a comparison, and the picture of a run's schedule."""
