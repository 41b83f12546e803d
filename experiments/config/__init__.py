"""The config of an experiment: `base` has all keys with their defaults."""

from experiments.config.experiment import base

__all__ = ["base"]
