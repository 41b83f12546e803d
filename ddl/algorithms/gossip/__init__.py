"""Algorithms whose workers exchange with peers."""
