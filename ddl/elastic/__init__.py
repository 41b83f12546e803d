"""Elastic training: runs whose membership changes, in virtual time or with real processes."""

from ddl.elastic.keeper import KeeperStore, ProcessGroup, trainer_of_process
from ddl.elastic.trainer import PRESENCE, ElasticClock, ElasticTrainer, Held, Rows, check, in_virtual_time

__all__ = [
  "PRESENCE",
  "ElasticClock",
  "ElasticTrainer",
  "Held",
  "KeeperStore",
  "ProcessGroup",
  "Rows",
  "check",
  "in_virtual_time",
  "trainer_of_process",
]
