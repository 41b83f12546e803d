"""Runs whose workers come and go, in virtual time or with their processes."""

from ddl.elastic.trainer import Elastic, Held, Rows, check

__all__ = ["Elastic", "Held", "Rows", "check"]
