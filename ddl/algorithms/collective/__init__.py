"""Algorithms whose workers communicate by collectives."""
