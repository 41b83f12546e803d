"""Commands of run.py, benchmarks, and studies of published results."""
