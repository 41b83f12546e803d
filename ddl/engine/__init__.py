"""Map workers to devices and run any algorithm that implements an interface of `ddl.api`, compiled by XLA."""
