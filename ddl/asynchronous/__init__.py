"""Algorithms with a server or peers: in virtual time, on threads, and on Ray."""
