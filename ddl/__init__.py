"""ddl: distributed SGD variants as pure functions, run for real and compared fairly."""

__version__ = "0.1.0"
