"""The config of an experiment.

`base` returns a config with all keys and defaults, `custom` returns the section for a user-defined function, and
`default_experiment` builds an `Experiment`.
"""

from ddl.config.base import base, default_experiment
from ddl.config.user_code import custom

__all__ = ["base", "custom", "default_experiment"]
