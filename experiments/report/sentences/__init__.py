"""What a report says in words."""
