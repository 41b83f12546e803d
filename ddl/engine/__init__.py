"""The engine: layouts of workers and compiled rounds, for any algorithm with the interfaces of `ddl.api`."""
