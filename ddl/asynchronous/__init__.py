"""Runtimes of server and gossip algorithms: in virtual time, on threads, and on Ray."""
