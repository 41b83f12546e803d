"""Several algorithms on one budget of examples: comparisons over seeds, and sweeps that tune each alike."""
