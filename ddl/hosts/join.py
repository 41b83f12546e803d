"""Join a group of processes with `jax.distributed`, and explain why joining or a later connection failed."""

import errno
import os
import re
import socket
from collections import Counter
from typing import Any

import jax
from jax.experimental import multihost_utils

from ddl import memory
from ddl.errors import OptionError
from ddl.hosts.abort import is_loss, report_aborts
from ddl.hosts.launcher import follow_launcher
from ddl.hosts.process_info import ProcessInfo, check_address, cluster_advice, host_port, member, set_member

SAME_DEVICES = "Give each process the same number of devices and the same num_processes."
LATE = 5.0  # seconds by which JAX may exceed its initialization_timeout
NO_PROXY = "no_grpc_proxy"  # environment variable: hosts to which gRPC connects without a proxy


def join(join_timeout: float, peer_timeout: float) -> None:
  """Join the process group that flags, a launcher or the cluster's environment define; do nothing without one.

  Call it once per process, before any device is used. If a process does not join or is lost later, the others exit with
  one line on stderr, with exit code 2 before all have joined and 1 afterwards. A failing process must call
  `exit_process`, because an ordinary exit waits for all others.

  Args:
    join_timeout: seconds within which all processes must join.
    peer_timeout: seconds without a heartbeat after which a process counts as lost.

  Raises:
    ValueError: if the address cannot be used, the processes differ in num_processes or in their number of devices, or
      joining fails for another reason.
    RuntimeError: if a collective fails because a connection is lost.
  """
  follow_launcher()
  me = member()
  if me.count == 1:
    return
  set_member(me)
  memory.keep_freed()  # background sends split a call into many programs, which then reuse freed memory
  host, port = check_address(me.coordinator) if me.coordinator else ("", 0)
  listen_at = _listen_address(me, host, port) if me.coordinator and me.rank == 0 else None
  report_aborts(lambda log: _explain(log, me, join_timeout, peer_timeout))
  if host:  # a proxy would delay or prevent the connection to process 0
    direct = os.environ.get(NO_PROXY) or os.environ.get("no_proxy") or ""
    os.environ[NO_PROXY] = ",".join(filter(None, [direct, host]))
    jax.config.update("jax_check_proxy_envs", False)  # this check would warn about a proxy
  jax.config.update("jax_enable_preemption_service", False)  # its SIGTERM handler would replace ours
  try:
    jax.distributed.initialize(
      me.coordinator or None,
      me.count,
      me.rank,
      me.gpu,
      cluster_detection_method="deactivate" if me.coordinator else None,
      initialization_timeout=max(1, round(join_timeout - LATE)),
      heartbeat_timeout_seconds=round(peer_timeout),
      coordinator_bind_address=listen_at,
    )
    devices = Counter(device.process_index for device in jax.devices())
    if len({*devices.values()}) > 1:
      got = ", ".join(f"{number} in process {rank}" for rank, number in sorted(devices.items())[:8])
      raise OptionError("the device count", "the same in all processes", got, SAME_DEVICES)
    # Connect now: the first collective times out after 30 s, and later a process may still be compiling.
    multihost_utils.sync_global_devices("joined")
  except OptionError:
    raise
  except (RuntimeError, ValueError) as error:
    kind = RuntimeError if is_loss(error) else ValueError  # from Gloo or JAX
    raise kind(f"{_first_line(str(error))}{_name_advice(host)}") from error


def _listen_address(me: ProcessInfo, host: str, port: int) -> str:
  """Return the address HOST:PORT at which process 0 listens; raise ValueError if process 0 cannot listen there."""
  try:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError):
    return f"[::]:{port}"  # the name may not resolve yet, such as that of a new pod
  # Prefer IPv4, as a host may lack IPv6.
  family, *_, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
  local = str(address[0])
  if local.startswith("127.") and not host.startswith("127.") and host != "localhost":
    local = "0.0.0.0"  # the host's name resolves to loopback: listen on all interfaces
  try:
    socket.create_server((local, port), family=family).close()
  except OSError as error:
    if error.errno == errno.EADDRINUSE:
      raise ValueError(f"coordinator must have a port that is not in use, got {me.coordinator}.") from error
    value = f"{me.coordinator} ({error.strerror})"
    raise ValueError(f"coordinator must be an address at which process 0 can listen, got {value}.") from error
  return host_port(local, port)


def _explain(log: str, me: ProcessInfo, join_timeout: float, peer_timeout: float) -> tuple[str, int]:
  """Return (why JAX aborts this process, exit code), derived from the log of JAX's coordination service."""
  silent = re.search(r"stopped sending heartbeats\):\s*(\d+)", log)
  where = me.coordinator or f"the coordinator set by {me.cluster}"
  if "different incarnation" in log or ("already in error" in log and not silent):
    return f"another process joined {where} with a process_id that is already in use", 1
  if unexpected := re.search(r"Unexpected task registered with task=(\d+)", log):
    return f"process {unexpected[1]} joined {where}, but process 0 has a smaller num_processes", 2
  if "RegisterTask" in log:
    reason = f"not all {me.count} processes joined at {where} within {join_timeout:g} s"
    return (
      f"{reason}{_unreached(me)}; start all, each with its own process_id, or raise join_timeout{cluster_advice(me)}",
      2,
    )
  if silent:
    return f"process {silent[1]} of {me.count} sent no heartbeat for {peer_timeout:g} s", 1
  if "/Heartbeat" in log and me.rank:
    return f"process 0 of {me.count} answered no heartbeat for {peer_timeout:g} s", 1
  if "Failed to send RPC" in log and me.rank:
    return f"process 0 of {me.count} exited or cannot be reached", 1
  return _first_line(log.partition("absl::Status: ")[2]), 1


def _unreached(me: ProcessInfo) -> str:
  """Return a clause that states why this process cannot reach process 0; "" if it can, or has no address of it."""
  if me.rank == 0 or not me.coordinator:
    return ""
  try:
    socket.create_connection(check_address(me.coordinator), timeout=2).close()
  except OSError as error:
    why = "unknown host" if isinstance(error, socket.gaierror) else (error.strerror or "no answer").lower()
    return f": process 0 cannot be reached ({why})"
  return ""


def _name_advice(coordinator: str) -> str:
  """Return advice if this host's name resolves to loopback, where other hosts cannot reach Gloo; else ""."""
  try:
    local = socket.gethostbyname(socket.gethostname())
  except OSError:
    return ""
  if not local.startswith("127.") or coordinator.startswith("127.") or coordinator == "localhost":
    return ""
  return f"; {socket.gethostname()} resolves to {local}: set an address in /etc/hosts that other hosts can reach"


def _first_line(text: str) -> str:
  return text.strip().partition("\n")[0][:300]


def is_main() -> bool:
  """Return whether this is the main process (rank 0), the only one that writes run folders and prints results."""
  return member().rank == 0


def wait_on_cpu(result: Any) -> Any:
  """Return the result of a program with collectives; on CPUs, wait for it first.

  On CPUs, XLA runs independent programs concurrently. Gloo could then confuse their messages, and the collectives of
  many programs could deadlock.
  """
  return jax.block_until_ready(result) if jax.default_backend() == "cpu" else result
