"""Collective algorithms whose rounds end in a step of an outer optimizer."""
