"""Every algorithm as NumPy pseudo-code."""
