"""The runtimes: layouts of workers and their compiled rounds, for any algorithm by the contracts of `ddl.api`."""
