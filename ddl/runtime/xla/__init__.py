"""What XLA is told, and what it made of a program."""
