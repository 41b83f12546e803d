"""Compare published numbers with predictions."""
