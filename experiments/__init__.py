"""The commands of run.py, and the studies."""
