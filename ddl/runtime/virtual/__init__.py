"""Server algorithms in virtual time: the exact order of a schedule."""
