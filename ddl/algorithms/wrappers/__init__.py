"""Wrappers: they take an algorithm and return one whose means are compressed."""
