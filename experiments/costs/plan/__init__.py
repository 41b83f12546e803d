"""What the command `plan` reads and says."""
