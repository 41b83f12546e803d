"""Measure the cost-model inputs of an experiment, and predict its speed on a cluster."""
