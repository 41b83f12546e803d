"""Measure algorithms on processes in network namespaces that are connected by a link of known bandwidth and latency."""
