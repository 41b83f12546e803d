"""Benchmarks of `run.py bench`, `calibrate` and `scale --measure`."""
