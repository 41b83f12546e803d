"""Server algorithms in real time on a Ray cluster."""
