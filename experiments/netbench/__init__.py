"""Processes in network namespaces of their own, joined by a link of a known bandwidth and latency."""
