"""Elastic training: runs whose set of workers changes, in virtual time or with real processes."""

from ddl.elastic.keeper import KeeperStore, ProcessGroup, trainer_of_process
from ddl.elastic.trainer import PRESENCE, ElasticCarry, ElasticClock, ElasticTrainer, LocalRows, check, in_virtual_time

__all__ = [
  "PRESENCE",
  "ElasticCarry",
  "ElasticClock",
  "ElasticTrainer",
  "KeeperStore",
  "LocalRows",
  "ProcessGroup",
  "check",
  "in_virtual_time",
  "trainer_of_process",
]
