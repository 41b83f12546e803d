"""Runs whose membership changes, in virtual time or with their processes."""

from ddl.elastic.processes import Generation, MemoryStore, of_processes, supervise
from ddl.elastic.trainer import PRESENCE, ElasticClock, ElasticTrainer, Held, Rows, check, in_virtual_time

__all__ = [
  "PRESENCE",
  "ElasticClock",
  "ElasticTrainer",
  "Generation",
  "Held",
  "MemoryStore",
  "Rows",
  "check",
  "in_virtual_time",
  "of_processes",
  "supervise",
]
