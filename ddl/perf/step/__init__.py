"""Seconds and memory of one worker's step, from its layers."""
