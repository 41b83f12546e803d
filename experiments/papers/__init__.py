"""Reported numbers of papers against predicted ones."""
