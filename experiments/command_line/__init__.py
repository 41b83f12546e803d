"""From a command line to a command: flags, the config's, and mistakes in them."""
