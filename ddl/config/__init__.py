"""The config of an experiment.

`base` returns a config with all keys and defaults, `own` adds a user-defined function to a config, and
`default_experiment` builds an `Experiment`.
"""

from ddl.config.base import base, default_experiment
from ddl.config.user_code import own

__all__ = ["base", "default_experiment", "own"]
