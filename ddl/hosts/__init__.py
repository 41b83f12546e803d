"""Groups of processes: ranks, launching, joining with `jax.distributed`, and agreement."""

from ddl.hosts.abort import exit_for_loss, exit_process, format_exit, is_loss, print_error
from ddl.hosts.agree import Vote, exchange, share
from ddl.hosts.join import JOIN_TIMEOUT, PEER_TIMEOUT, is_main, join, wait_on_cpu
from ddl.hosts.launcher import LAUNCHER, command_line, follow_launcher, launch, launched
from ddl.hosts.process_info import JOINED, ProcessInfo, declare, member, processes

__all__ = [
  "JOINED",
  "JOIN_TIMEOUT",
  "LAUNCHER",
  "PEER_TIMEOUT",
  "ProcessInfo",
  "Vote",
  "command_line",
  "declare",
  "exchange",
  "exit_for_loss",
  "exit_process",
  "follow_launcher",
  "format_exit",
  "is_loss",
  "is_main",
  "join",
  "launch",
  "launched",
  "member",
  "print_error",
  "processes",
  "share",
  "wait_on_cpu",
]
