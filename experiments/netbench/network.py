"""Emulate hosts with network namespaces that are connected by a link with a given bandwidth and latency.

If the kernel has tbf and netem, it shapes the link; otherwise `link.py` forwards packets between tun devices. The
namespaces have no names: each exists as long as its holder process, which exits when its standard input is closed. A
tun device exists as long as `link.py` keeps it open. So a crash, Ctrl-C or SIGKILL leaves nothing to remove.
"""

import contextlib
import fcntl
import functools
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
TUNSETOFFLOAD, TUN_F_CSUM = 0x400454D0, 1
CAP_SYS_ADMIN, CAP_NET_ADMIN = 21, 12
MTU = 60000  # bytes per packet: large, because Python forwards each packet of a tun device
QUEUE = 2**26  # bytes of the kernel's queue: several TCP windows, so that no packet is lost
# For comparable runs: TCP windows that exceed bandwidth x delay from the start, Reno, no slow start after idle time
SETTINGS = {
  "tcp_rmem": "4096 4194304 16777216", "tcp_wmem": "4096 4194304 16777216", "tcp_congestion_control": "reno",
  "tcp_slow_start_after_idle": "0",
}  # fmt: skip
OWN_SESSION: dict[str, Any] = {"start_new_session": True}  # a Ctrl-C reaches only this process, which stops the others
HOLD = """set -e
hostname "$1"; ip link set lo up
names=$(mktemp); printf "$2" > "$names"; mount --bind "$names" /etc/hosts; rm "$names"  # Gloo resolves the hostname
for pair in $3; do echo "${pair#*=}" | tr '_' ' ' > "/proc/sys/net/ipv4/${pair%%=*}"; done
echo held; exec cat"""


def capabilities() -> int:
  """Return the effective capabilities of this process as a bit mask."""
  return int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)


def check_rights(mask: int | None = None) -> None:
  """Raise ValueError unless this process can create namespaces and a link.

  mask: capabilities as a bit mask; None: those of this process.
  """
  if not sys.platform.startswith("linux"):
    raise ValueError("netbench requires network namespaces, which only Linux has")
  mask = capabilities() if mask is None else mask
  if not all(mask >> bit & 1 for bit in (CAP_SYS_ADMIN, CAP_NET_ADMIN)):
    raise ValueError(
      "netbench requires root (CAP_SYS_ADMIN and CAP_NET_ADMIN) to create network namespaces: run it with sudo or in a "
      "container started with --privileged"
    )
  if not TUN.exists() and not kernel_emulates_links():
    raise ValueError(
      f"netbench requires tbf and netem in the kernel, or {TUN}: run `modprobe tun`, or start the container with "
      f"--device={TUN}"
    )


@functools.cache
def kernel_emulates_links() -> bool:
  """Test in a temporary namespace whether the kernel supports `KernelLink`; return the result."""
  trial = """ip link add a type veth peer name b && ip link add c type bridge
    tc qdisc add dev a root tbf rate 1mbit burst 10kb limit 1mb && tc qdisc add dev b root netem delay 1ms"""
  try:
    return not subprocess.run(["unshare", "--net", "sh", "-ec", trial], capture_output=True, check=False).returncode
  except FileNotFoundError:
    return False


def address(host: int) -> str:
  """Return the IPv4 address of a host."""
  return f"10.77.0.{host + 1}"


class KernelLink:
  """Virtual Ethernet links to a bridge: the kernel's tbf limits what a host sends, netem delays what it receives."""

  title = "the kernel (tbf, netem)"

  def __init__(self, pids: Sequence[int], rate: float, latency: float, stack: contextlib.ExitStack):
    """Create the link's devices. pids: the processes that hold the hosts' namespaces."""
    self._pids, self._hub = pids, stack.enter_context(_holder("hub", "")).pid
    self.devices = ["eth0"] * len(pids)
    _run("ip", "link", "add", "bridge", "type", "bridge", pid=self._hub)
    _run("ip", "link", "set", "bridge", "mtu", str(MTU), "up", pid=self._hub)
    for host, pid in enumerate(pids):
      ends = ("type", "veth", "peer", "name", f"port{host}", "netns", str(self._hub))
      _run("ip", "link", "add", "eth0", "netns", str(pid), *ends)
      _run("ip", "link", "set", f"port{host}", "master", "bridge", "mtu", str(MTU), "up", pid=self._hub)
    self.set(rate, latency)

  def set(self, rate: float, latency: float) -> None:
    """Change the bandwidth (bits per second) and the latency (seconds)."""
    burst = max(2 * MTU, round(rate / 8 * 0.004))  # bytes; a slow kernel timer ticks every 4 ms
    sent = ("tbf", "rate", f"{rate:.0f}", "burst", str(burst), "limit", str(QUEUE))
    received = ("netem", "delay", f"{1e6 * latency:.0f}us", "limit", "100000") if latency else ("pfifo",)
    for host, pid in enumerate(self._pids):
      _run("tc", "qdisc", "replace", "dev", "eth0", "root", *sent, pid=pid)
      _run("tc", "qdisc", "replace", "dev", f"port{host}", "root", *received, pid=self._hub)


class TunLink:
  """A process that forwards packets between tun devices (`link.py`)."""

  title = "a process between tun devices"

  def __init__(self, pids: Sequence[int], rate: float, latency: float, stack: contextlib.ExitStack):
    """Create the link's devices. pids: the processes that hold the hosts' namespaces."""
    self.devices = [f"ddl{os.getpid()}h{host}" for host in range(len(pids))]
    files = [_tun(device) for device in self.devices]
    for device, pid in zip(self.devices, pids, strict=True):
      _run("ip", "link", "set", device, "netns", str(pid))
    ends = [f"{file}:{address(host)}" for host, file in enumerate(files)]
    script = str(Path(__file__).with_name("link.py"))
    words = ["nice", "-n", "-10", sys.executable, "-I", "-S", script, str(rate), str(latency), *ends]
    command = _killed_with_parent(words)
    self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=files, **OWN_SESSION)
    stack.enter_context(_killed_at_exit(self._process))
    for file in files:
      os.close(file)  # only the link's process keeps them open, so that the devices disappear when it exits

  def set(self, rate: float, latency: float) -> None:
    """Change the bandwidth (bits per second) and the latency (seconds)."""
    assert self._process.stdin
    self._process.stdin.write(f"{rate} {latency}\n")
    self._process.stdin.flush()


@contextlib.contextmanager
def namespace_network(hosts: int, rate: float, latency: float) -> "Iterator[NamespaceNetwork]":
  """Create hosts and their link; remove both at exit.

  rate: bits per second of each host, one way; latency: seconds, one way.
  """
  with contextlib.ExitStack() as stack:
    names = "127.0.0.1 localhost\\n" + "".join(f"{address(h)} host{h}\\n" for h in range(hosts))
    pids = [stack.enter_context(_holder(f"host{host}", names)).pid for host in range(hosts)]
    link = (KernelLink if kernel_emulates_links() else TunLink)(pids, rate, latency, stack)
    for host, (pid, device) in enumerate(zip(pids, link.devices, strict=True)):
      _run("ip", "link", "set", device, "mtu", str(MTU), "txqueuelen", "1000", pid=pid)
      _run("ip", "address", "add", f"{address(host)}/24", "dev", device, pid=pid)
      _run("ip", "link", "set", device, "up", pid=pid)
    yield NamespaceNetwork(pids, link, rate, latency)


@dataclass
class NamespaceNetwork:
  """Hosts 0, 1, ... and the link between them."""

  pids: list[int]  # processes that hold the hosts' namespaces
  link: KernelLink | TunLink
  rate: float  # bits per second of each host, one way
  latency: float  # seconds, one way

  @property
  def hosts(self) -> int:
    """Return the number of hosts."""
    return len(self.pids)

  def set(self, rate: float, latency: float) -> None:
    """Change the link's bandwidth (bits per second) and latency (seconds)."""
    self.rate, self.latency = rate, latency
    self.link.set(rate, latency)

  def start(self, host: int, words: Sequence[str], core: int, **settings: Any) -> subprocess.Popen[str]:
    """Start a process on a host, on one core of this machine; it is killed when this process ends."""
    inside = ["nsenter", f"--target={self.pids[host]}", "--net", "--uts", "--mount"]
    place = ["env", f"--chdir={os.getcwd()}", "taskset", "--cpu-list", str(core)]  # nsenter --mount starts in /
    command = _killed_with_parent([*inside, *place, *words])
    return subprocess.Popen(command, text=True, **settings, **OWN_SESSION)


def _holder(name: str, names: str) -> Any:
  """Start a process that holds a new namespace; return a context manager that kills it at exit.

  name: hostname; names: contents of the host's /etc/hosts.
  """
  settings = " ".join(f"{key}={value.replace(' ', '_')}" for key, value in SETTINGS.items())
  words = ["unshare", "--net", "--uts", "--mount", "sh", "-c", HOLD, "sh", name, names, settings]
  pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
  process = subprocess.Popen(_killed_with_parent(words), **pipes, **OWN_SESSION)
  assert process.stdout
  if process.stdout.readline() != "held\n":
    process.wait()
    raise ValueError("netbench could not create a network namespace; see the error above.")
  return _killed_at_exit(process)


def _tun(name: str) -> int:
  """Create a tun device, which exists until the returned file descriptor is closed."""
  device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
  try:
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM)  # no checksums, to save CPU time
  except OSError:
    os.close(device)
    raise
  return device


def _killed_with_parent(words: Sequence[str]) -> list[str]:
  """Wrap a command so that it is killed when its parent process exits for any reason."""
  return ["setpriv", "--pdeathsig", "KILL", *words]


@contextlib.contextmanager
def _killed_at_exit(process: subprocess.Popen[str]) -> Any:
  try:
    yield process
  finally:
    process.kill()
    process.wait()


def _run(*words: str, pid: int | None = None) -> None:
  """Run a command, in the network namespace of process `pid` if given. Raises ValueError with stderr if it fails."""
  inside = ("nsenter", f"--target={pid}", "--net") if pid else ()
  done = subprocess.run((*inside, *words), capture_output=True, text=True, check=False)
  if done.returncode:
    raise ValueError(f"netbench: `{' '.join(words)}` failed: {done.stderr.strip()}")
