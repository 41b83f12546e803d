"""The report's part on a grid of settings."""
