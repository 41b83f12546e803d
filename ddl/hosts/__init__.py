"""Groups of processes: ranks, launching, joining with `jax.distributed`, and agreement."""

from ddl.hosts.abort import exit_for_loss, exit_process, format_exit, is_loss, print_error
from ddl.hosts.agree import Vote, exchange, share
from ddl.hosts.join import is_main, join, wait_on_cpu
from ddl.hosts.launcher import LAUNCHER, command_line, follow_launcher, launch, launched
from ddl.hosts.process_info import JOINED, ProcessInfo, declare, member, processes
