"""Joining a group of processes by `jax.distributed`, and what each of them then has to know of it."""

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

import jax
from jax._src import distributed, xla_bridge  # see `_Service` and `_gloo_at`
from jax.experimental import multihost_utils
from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

from ddl import memory
from ddl.hosts import rendezvous
from ddl.hosts.launcher import follow_launcher
from ddl.hosts.process_info import check_address, check_seconds, member, whence
from ddl.hosts.watch import PEER_TIMEOUT, start

JOIN_TIMEOUT = 60.0  # seconds
DIRECT = "no_grpc_proxy"  # hosts that gRPC connects to without a proxy
SERVICE = """
import json, sys, time
from jaxlib import _jax
address, count, settings = json.loads(sys.argv[1])
service = _jax.get_distributed_runtime_service(address, count, **settings)
print("ready", flush=True)
if sys.stdin.readline():
  service.shutdown()
else:
  time.sleep(5)
"""
ENDING = 10.0  # seconds for the end of the service, which gives calls under way 5


def join(seconds: float = JOIN_TIMEOUT, silence: float | None = PEER_TIMEOUT) -> None:
  """Join this process to its group, if it is one of several. Call before any device use.

  seconds: in which all processes have to come; silence: seconds after which one counts as lost, see `lost`; None: a
  supervisor watches them.

  Raises:
    ValueError: in every process that came, if not all did, or they contradict each other; see `rendezvous.meet`; or for
      a timeout out of its range.
  """
  me = member()
  check_seconds("join_timeout", seconds)
  if silence is not None:
    check_seconds("peer_timeout", silence)
  follow_launcher()
  if me.count == 1:
    return
  memory.keep_freed()  # a call is many programs where messages are in the background
  try:
    met = rendezvous.meet(me.rank, me.count, *check_address(me.coordinator), seconds)
  except ValueError as error:
    raise ValueError(f"{error}{whence(me)}") from error
  _jax.get_distributed_runtime_service = _Service
  _without_proxy(met.coordinator)
  jax.distributed.initialize(
    met.coordinator,
    me.count,
    me.rank,
    me.gpu,
    cluster_detection_method="deactivate",  # all is known, and it would choose GPUs of its own for `launch`'s processes
    initialization_timeout=max(10, round(seconds)),
    coordinator_bind_address=met.coordinator,  # the default are all addresses of the host
    heartbeat_timeout_seconds=max(
      100, round(10 * (silence or 0))
    ),  # `lost` is to be first: JAX ends with a page of C++ log
  )
  if silence is not None:  # before devices: each waits for those of all others, in C++
    start(met.address, silence)
  _gloo_at(met.address)
  # Connections are made by the first collective, which waits 30 s for the others: now, as later one of them may still
  # be compiling.
  multihost_utils.sync_global_devices("joined")


def _without_proxy(coordinator: str) -> None:
  """Let gRPC connect to process 0 directly: by a proxy of the environment it waits, and JAX ends with a page of log."""
  others = os.environ.get(DIRECT) or os.environ.get("no_proxy") or ""
  os.environ[DIRECT] = ",".join(filter(None, [others, coordinator.rpartition(":")[0].strip("[]")]))
  jax.config.update("jax_check_proxy_envs", False)  # which warns of that


class _Service:
  """JAX's coordination service in a process of its own, which outlives a process 0 that fails by some seconds.

  Where the service's process is gone, JAX kills all others at once with a page of C++ log; now `lost` comes first.
  """

  def __init__(self, address: str, count: int, **settings: Any):
    self._process = subprocess.Popen(
      [sys.executable, "-c", SERVICE, json.dumps([address, count, settings])],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,  # pages of C++ log where a process ends before all have registered
      start_new_session=True,  # a terminal's Ctrl-C is for those that are to save
    )
    assert self._process.stdout
    if not self._process.stdout.readline():
      raise ValueError(f"the coordination service could not start at {address}")

  def shutdown(self) -> None:
    """End it: all processes are done.

    The others may not have read that yet, and JAX ends one with SIGABRT whose connection closes before it has. So the
    service waits for calls under way, up to 5 s, and this process for the service: where process 0 is the main one of
    a container, all others there are killed when it ends.
    """
    try:
      self._process.communicate(b"\n", timeout=ENDING)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()


def _gloo_at(address: str) -> None:
  """Make the CPU's collectives listen at the address by which this process reaches the others.

  JAX names none, and gloo takes that which the host's name resolves to: 127.0.1.1 on many hosts, where nobody else
  comes; and the network on others, where processes on one machine need loopback alone.
  """
  if jax.config.values["jax_cpu_collectives_implementation"] != "gloo":
    return
  client = distributed.global_state.client
  _without_gloo_on_stdout()

  def make() -> Any:
    gloo: Any = _jax.make_gloo_tcp_collectives
    return xla_bridge.make_cpu_client(gloo(distributed_client=client, hostname=address))

  xla_bridge.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def _without_gloo_on_stdout() -> None:
  """Keep Python's standard output, and drop that of C++: gloo prints a line there for each group that it connects."""
  sys.stdout.flush()
  kept = os.dup(1)
  with open(os.devnull, "wb") as nowhere:
    os.dup2(nowhere.fileno(), 1)
  sys.stdout = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, buffering=1)


def leave(code: int) -> None:
  """End a process of a group at once: an ordinary exit would wait for the others, which wait for this one."""
  if jax.distributed.is_initialized():
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    os._exit(code)


def is_main() -> bool:
  """Return whether this process writes the files and the terminal."""
  return jax.process_index() == 0


def in_order(result: Any) -> Any:
  """Return the result of a program with collectives, which on CPUs is waited for.

  They run programs that do not depend on each other at the same time: Gloo then takes the messages of one for those of
  the other, and collectives of many wait for each other's threads for ever.
  """
  return jax.block_until_ready(result) if jax.default_backend() == "cpu" else result
