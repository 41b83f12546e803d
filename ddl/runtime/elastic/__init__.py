"""Runs whose workers come and go, in virtual time or with their processes."""

from ddl.runtime.elastic.checks import check
from ddl.runtime.elastic.rows import Rows
from ddl.runtime.elastic.trainers import Elastic, Held

__all__ = ["Elastic", "Held", "Rows", "check"]
