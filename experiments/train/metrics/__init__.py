"""What is measured of a run, and how it is told."""
