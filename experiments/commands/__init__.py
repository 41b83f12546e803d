"""The commands of run.py, one file each."""
