"""Wrappers of an algorithm: compressors of its means, and SPARTA, which adds averages of parameters."""
