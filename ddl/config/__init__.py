"""The config of an experiment.

`base` has all keys with their defaults, `own` names an object of the user's, `default_experiment` makes a value.
"""

from ddl.config.base import base, default_experiment
from ddl.config.user_code import own

__all__ = ["base", "default_experiment", "own"]
