"""The round that every algorithm is run by, and what compiles and calls it."""
