"""Algorithms whose workers meet in collectives."""
