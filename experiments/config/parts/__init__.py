"""Parts that a config names: ddl's, libraries' and the user's own."""
