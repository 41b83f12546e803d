"""Seconds of messages: collectives, servers, packing."""
