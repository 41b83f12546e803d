"""What `run.py bench` measures."""
