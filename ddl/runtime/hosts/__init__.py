"""Groups of processes: who this one is, how they are started, meet and join, and how they agree."""

from ddl.runtime.hosts.agreeing import Vote, exchange
from ddl.runtime.hosts.join import in_order, is_main, join, leave
from ddl.runtime.hosts.launcher import command_line, launch
from ddl.runtime.hosts.membership import JOINED, Membership, declare, processes

__all__ = [
  "JOINED",
  "Membership",
  "Vote",
  "command_line",
  "declare",
  "exchange",
  "in_order",
  "is_main",
  "join",
  "launch",
  "leave",
  "processes",
]
