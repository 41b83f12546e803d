"""Command-line parsing: flags, --config and its overrides, and error messages for both."""
