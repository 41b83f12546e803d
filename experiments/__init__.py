"""The commands behind run.py: where config, library and pictures meet."""
