"""Each algorithm as NumPy pseudo-code."""
