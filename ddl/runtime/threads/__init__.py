"""Server algorithms in real time on threads of one process."""
