"""Runs whose workers come and go, in virtual time and as real processes."""
