"""Joining a group of processes with `jax.distributed`, and the reasons why that fails."""

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
from ddl.hosts.process_info import ProcessInfo, check_address, check_seconds, host_port, member, set_member, whence

JOIN_TIMEOUT = 60.0  # seconds
PEER_TIMEOUT = 30.0  # seconds without a heartbeat after which a process is lost
LATE = 5.0  # seconds by which JAX exceeds its initialization_timeout
NO_PROXY = "no_grpc_proxy"  # hosts that gRPC connects to without a proxy


def join(join_timeout: float = JOIN_TIMEOUT, peer_timeout: float = PEER_TIMEOUT) -> None:
  """Join the group that flags, a launcher or the cluster's environment describe, if any.

  Call before any device is used, once per process. A process that does not join, or is lost later, ends the others
  with one line on stderr: exit code 2 before all have joined, 1 after that. A process that fails calls `leave`, as an
  ordinary exit waits for all others.

  Args:
    join_timeout: seconds in which all processes must join.
    peer_timeout: seconds without a heartbeat after which a process is lost.

  Raises:
    ValueError: if the address cannot be used, the processes differ in their number, or a timeout is out of range.
  """
  follow_launcher()
  me = member()
  check_seconds("join_timeout", join_timeout)
  check_seconds("peer_timeout", peer_timeout)
  if me.count == 1:
    return
  set_member(me)
  memory.keep_freed()  # background messages split a call into many programs, which reuse freed memory
  host, port = check_address(me.coordinator) if me.coordinator else ("", 0)
  listen_at = _listen_address(me, host, port) if me.coordinator and me.rank == 0 else None
  report_aborts(lambda log: _explain(log, me, join_timeout, peer_timeout))
  if host:  # a proxy of the environment would delay or prevent the connection to process 0
    direct = os.environ.get(NO_PROXY) or os.environ.get("no_proxy") or ""
    os.environ[NO_PROXY] = ",".join(filter(None, [direct, host]))
    jax.config.update("jax_check_proxy_envs", False)  # which warns of one
  jax.config.update("jax_enable_preemption_service", False)  # its handler of SIGTERM would replace ours
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
      raise OptionError("devices", "the same number in all processes", got, "Pass the same num_processes to all.")
    # Connect the processes now: the first collective waits 30 s, and later one of them may still be compiling.
    multihost_utils.sync_global_devices("joined")
  except OptionError:
    raise
  except (RuntimeError, ValueError) as error:
    kind = RuntimeError if is_loss(error) else ValueError  # of Gloo, or of JAX
    raise kind(f"{_first_line(str(error))}{_name_advice(host)}") from error


def _listen_address(me: ProcessInfo, host: str, port: int) -> str:
  """Return the address at which process 0 listens; ValueError, one line, if it cannot."""
  try:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError):
    return f"[::]:{port}"  # a name that is not known yet, as a new pod's
  # Prefer IPv4, as a host may lack IPv6.
  family, *_, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
  local = str(address[0])
  if local.startswith("127.") and not host.startswith("127.") and host != "localhost":
    local = "0.0.0.0"  # the host's name resolves to loopback: listen on all interfaces
  try:
    socket.create_server((local, port), family=family).close()
  except OSError as error:
    if error.errno == errno.EADDRINUSE:
      raise ValueError(f"port {port} is in use at {me.coordinator}; choose another one in coordinator") from error
    advice = "coordinator must name the host of process 0"
    raise ValueError(f"process 0 cannot listen at {me.coordinator} ({error.strerror}); {advice}") from error
  return host_port(local, port)


def _explain(log: str, me: ProcessInfo, join_timeout: float, peer_timeout: float) -> tuple[str, int]:
  """Return why JAX aborts this process, from the log of its coordination service, and the exit code."""
  silent = re.search(r"stopped sending heartbeats\):\s*(\d+)", log)
  where = me.coordinator or f"the coordinator that {me.cluster} names"
  if "different incarnation" in log or "already in error" in log:
    return f"another process joined {where} with a process_id that is already taken", 1
  if unexpected := re.search(r"Unexpected task registered with task=(\d+)", log):
    return f"process {unexpected[1]} joined {where}, where process 0 has a smaller num_processes", 2
  if "RegisterTask" in log:
    reason = f"not all {me.count} processes joined at {where} within {join_timeout:g} s"
    return f"{reason}{_unreached(me)}; start all, each with its own process_id, or raise join_timeout{whence(me)}", 2
  if silent:
    return f"process {silent[1]} of {me.count} sent no heartbeat for {peer_timeout:g} s", 1
  if "/Heartbeat" in log and me.rank:
    return f"process 0 of {me.count} answered no heartbeat for {peer_timeout:g} s", 1
  if "Failed to send RPC" in log and me.rank:
    return f"process 0 of {me.count} exited or cannot be reached", 1
  return _first_line(log.partition("absl::Status: ")[2]), 1


def _unreached(me: ProcessInfo) -> str:
  """Return why this process does not reach process 0; "" if it does."""
  if me.rank == 0 or not me.coordinator:
    return ""
  try:
    socket.create_connection(check_address(me.coordinator), timeout=2).close()
  except OSError as error:
    why = "unknown host" if isinstance(error, socket.gaierror) else (error.strerror or "no answer").lower()
    return f": process 0 was not reached ({why})"
  return ""


def _name_advice(coordinator: str) -> str:
  """Return advice if this host's name resolves to loopback, where Gloo then listens, out of reach of other hosts."""
  try:
    local = socket.gethostbyname(socket.gethostname())
  except OSError:
    return ""
  if not local.startswith("127.") or coordinator.startswith("127.") or coordinator == "localhost":
    return ""
  return f"; {socket.gethostname()} is {local} here: give it an address in /etc/hosts that the other hosts reach"


def _first_line(text: str) -> str:
  return text.strip().partition("\n")[0][:300]


def is_main() -> bool:
  """Return whether this process writes the files and the terminal."""
  return member().rank == 0


def wait_on_cpu(result: Any) -> Any:
  """Return the result of a program with collectives; on CPUs wait for it first.

  XLA runs independent programs on CPUs at the same time: Gloo then takes the messages of one for those of the other,
  and collectives of many programs wait for each other's threads forever.
  """
  return jax.block_until_ready(result) if jax.default_backend() == "cpu" else result
