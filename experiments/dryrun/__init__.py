"""Compile training steps for devices that are not available, and analyze the compiler's schedules."""
