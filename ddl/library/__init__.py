"""The commands as functions of Python, and what they return."""
