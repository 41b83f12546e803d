"""Wrappers: compressors of an algorithm's means, and SPARTA, which also averages parameters."""
