"""The pictures of reports."""
