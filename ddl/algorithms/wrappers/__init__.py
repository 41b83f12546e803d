"""Wrappers, which take an algorithm and return one whose means are compressed."""
