"""Gossip algorithms, whose workers exchange models with peers."""
