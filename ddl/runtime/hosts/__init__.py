"""Groups of processes: who this one is, how they are started, meet and join, and how they agree."""

from ddl.runtime.hosts.agreeing import Vote, exchange, share
from ddl.runtime.hosts.join import JOIN_TIMEOUT, in_order, is_main, join, leave
from ddl.runtime.hosts.launcher import RESTARTED, command_line, launch, launched
from ddl.runtime.hosts.lost import GRACE, PEER_TIMEOUT, end, in_words, lost
from ddl.runtime.hosts.membership import JOINED, LAUNCHER, Membership, declare, member, processes
from ddl.runtime.hosts.orphans import follow_launcher
from ddl.runtime.hosts.terminal import tell

__all__ = [
  "GRACE",
  "JOINED",
  "JOIN_TIMEOUT",
  "LAUNCHER",
  "PEER_TIMEOUT",
  "RESTARTED",
  "Membership",
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
