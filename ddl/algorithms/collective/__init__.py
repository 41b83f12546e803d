"""Algorithms whose workers communicate through collectives."""
