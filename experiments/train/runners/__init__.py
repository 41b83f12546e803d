"""What advances a run between reports: compiled calls, threads, Ray; and what repeats a recorded run."""
