"""The config of an experiment: `base` has all keys with their defaults, `default_experiment` makes the value of it."""

from experiments.config.base import base, default_experiment

__all__ = ["base", "default_experiment"]
