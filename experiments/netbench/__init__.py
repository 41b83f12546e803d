"""Measure algorithms on processes in separate network namespaces, joined by a link of known bandwidth and latency."""
