"""Where workers live and how rounds run: knows the contracts of `ddl.api`, and no algorithm by name."""
