"""What seeds allow to be said: intervals, the one paired test, which seeds are compared, what stays undetected."""
