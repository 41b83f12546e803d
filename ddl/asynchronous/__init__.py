"""Runtimes for server and gossip algorithms: a simulator in virtual time, threads, and Ray."""
