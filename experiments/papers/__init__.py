"""Comparison of published numbers with predictions."""
