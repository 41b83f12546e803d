"""Algorithms whose workers exchange messages with a server, one worker at a time."""
