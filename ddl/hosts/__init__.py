"""Groups of processes: who this one is, how they are started, meet and join, and how they agree."""

from ddl.hosts.agree import Vote, exchange, share
from ddl.hosts.join import JOIN_TIMEOUT, in_order, is_main, join, leave
from ddl.hosts.launcher import RESTARTED, command_line, follow_launcher, launch, launched
from ddl.hosts.process_info import JOINED, LAUNCHER, ProcessInfo, declare, member, processes
from ddl.hosts.watch import GRACE, PEER_TIMEOUT, end, in_words, lost, tell

__all__ = [
  "GRACE",
  "JOINED",
  "JOIN_TIMEOUT",
  "LAUNCHER",
  "PEER_TIMEOUT",
  "RESTARTED",
  "ProcessInfo",
  "Vote",
  "command_line",
  "declare",
  "end",
  "exchange",
  "follow_launcher",
  "in_order",
  "in_words",
  "is_main",
  "join",
  "launch",
  "launched",
  "leave",
  "lost",
  "member",
  "processes",
  "share",
  "tell",
]
