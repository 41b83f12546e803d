"""Cost models as published."""
