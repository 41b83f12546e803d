"""This machine as a cluster: blocks that are measured, the fits of the terms, and their record in a file."""
