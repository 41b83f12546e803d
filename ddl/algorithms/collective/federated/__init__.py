"""Federated algorithms: a sample of the workers counts in each round, and their optimizers start anew."""
