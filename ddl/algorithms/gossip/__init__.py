"""Gossip algorithms, whose workers exchange with peers."""
