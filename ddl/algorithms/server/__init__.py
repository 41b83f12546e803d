"""Algorithms whose workers exchange with a server one at a time."""
