"""Seconds of a step for each family of algorithms: synchronous, sharded, local between islands, with a server."""
