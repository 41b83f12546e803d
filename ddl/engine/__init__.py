"""The engine: maps workers to devices and runs any algorithm with the interfaces of `ddl.api`, compiled by XLA."""
