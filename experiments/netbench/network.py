"""Hosts that are network namespaces, joined by `link`: nothing of them outlives the process that made them.

The namespaces have no name: each lives as long as the process that holds it, which ends with its standard input, and a
tun device as long as the link that has it open. So a crash, a Ctrl-C or a SIGKILL leaves nothing to remove.
"""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
TUNSETOFFLOAD, TUN_F_CSUM = 0x400454D0, 1
CAP_SYS_ADMIN, CAP_NET_ADMIN = 21, 12
MTU = 60000  # bytes of a packet: few packets, as each is carried by Python
# The connections of all runs are equal: windows above bandwidth x delay at once, no model of the path, no new start
SETTINGS = {
  "tcp_rmem": "4096 4194304 16777216", "tcp_wmem": "4096 4194304 16777216", "tcp_congestion_control": "reno",
  "tcp_slow_start_after_idle": "0",
}  # fmt: skip
APART: dict[str, Any] = {"start_new_session": True}  # a terminal's Ctrl-C is this process's, which then ends them
HOLD = """set -e
hostname "$1"; ip link set lo up
names=$(mktemp); printf "$2" > "$names"; mount --bind "$names" /etc/hosts; rm "$names"  # Gloo takes its own host's name
for pair in $3; do echo "${pair#*=}" | tr '_' ' ' > "/proc/sys/net/ipv4/${pair%%=*}"; done
echo held; exec cat"""


def capabilities() -> int:
  """Return what this process may do, as a mask."""
  return int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)


def check_rights(mask: int | None = None) -> None:
  """ValueError where namespaces and tun devices cannot be made. mask: of `capabilities`; default: this process's."""
  if not sys.platform.startswith("linux"):
    raise ValueError("this makes network namespaces, which Linux alone has")
  mask = capabilities() if mask is None else mask
  if not all(mask >> bit & 1 for bit in (CAP_SYS_ADMIN, CAP_NET_ADMIN)):
    raise ValueError(
      "this makes network namespaces, which takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN): run it as root, e.g. with "
      "sudo, or in a container started with --privileged"
    )
  if not TUN.exists():
    raise ValueError(f"there is no {TUN}: load it with `modprobe tun`, or give the container --device={TUN}")


def address(host: int) -> str:
  """Return the address of a host."""
  return f"10.77.0.{host + 1}"


class NamespaceNetwork:
  """Hosts 0, 1, ... and the link between them, a context manager that ends them."""

  def __init__(self, hosts: int, rate: float, latency: float):
    """rate: bits per second of each host, one way; latency: seconds, one way.

    Raises:
      ValueError: if this machine does not let one.
    """
    self.hosts, self.rate, self.latency = hosts, rate, latency
    self._holders: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
      names = "127.0.0.1 localhost\\n" + "".join(f"{address(h)} host{h}\\n" for h in range(hosts))
      devices = []
      for host in range(hosts):
        self._holders.append(stack.enter_context(_holder(host, names)))
        devices.append(_tun(f"ddl{os.getpid()}h{host}", stack))
        self._attach(host, f"ddl{os.getpid()}h{host}")
      script = str(Path(__file__).with_name("link.py"))
      ends = [f"{device}:{address(host)}" for host, device in enumerate(devices)]
      words = ["nice", "-n", "-10", sys.executable, "-I", "-S", script, str(rate), str(latency), *ends]
      self._link = subprocess.Popen(_mortal(words), stdin=subprocess.PIPE, text=True, pass_fds=devices, **APART)
      stack.enter_context(_ending(self._link))
      for device in devices:
        os.close(device)  # the link's alone, and with it they go
      self._stack = stack.pop_all()

  def __enter__(self) -> "NamespaceNetwork":
    return self

  def __exit__(self, *_: object) -> None:
    self._stack.close()

  def set(self, rate: float, latency: float) -> None:
    """Give the link another bandwidth, bits per second, and latency, seconds."""
    self.rate, self.latency = rate, latency
    self._tell(f"set {rate} {latency}")

  def cut(self, host: int) -> None:
    """Lose all packets from and to a host, until `mend`."""
    self._tell(f"cut {host}")

  def mend(self, host: int) -> None:
    """Undo `cut`."""
    self._tell(f"mend {host}")

  def start(self, host: int, words: Sequence[str], core: int, **settings: Any) -> subprocess.Popen[str]:
    """Start a process on a host, on one core of this machine; it is killed when this process ends."""
    inside = ["nsenter", f"--target={self._holders[host].pid}", "--net", "--uts", "--mount"]
    place = ["env", f"--chdir={os.getcwd()}", "taskset", "--cpu-list", str(core)]  # another namespace begins at /
    return subprocess.Popen(_mortal([*inside, *place, *words]), text=True, **settings, **APART)

  def _tell(self, line: str) -> None:
    assert self._link.stdin
    self._link.stdin.write(line + "\n")
    self._link.stdin.flush()

  def _attach(self, host: int, device: str) -> None:
    """Move a device into the host, with its address."""
    pid = self._holders[host].pid
    inside = ("nsenter", f"--target={pid}", "--net")
    _run("ip", "link", "set", device, "netns", str(pid))
    _run(*inside, "ip", "link", "set", device, "mtu", str(MTU), "txqueuelen", "1000")
    _run(*inside, "ip", "address", "add", f"{address(host)}/24", "dev", device)
    _run(*inside, "ip", "link", "set", device, "up")


def _holder(host: int, names: str) -> Any:
  """A process that holds a namespace until its standard input ends."""
  settings = " ".join(f"{key}={value.replace(' ', '_')}" for key, value in SETTINGS.items())
  words = ["unshare", "--net", "--uts", "--mount", "sh", "-c", HOLD, "sh", f"host{host}", names, settings]
  process = subprocess.Popen(_mortal(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **APART)
  assert process.stdout
  if process.stdout.readline() != "held\n":
    process.wait()
    raise ValueError("netbench could not make a network namespace here; what the system said stands above")
  return _ending(process)


def _tun(name: str, stack: contextlib.ExitStack) -> int:
  """A new tun device, which is there until its file descriptor is closed."""
  device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
  try:
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM)  # no checksums, which would take the time of the hosts' cores
  except OSError:
    os.close(device)
    raise
  return device


def _mortal(words: Sequence[str]) -> list[str]:
  """A command that is killed when the process that started it ends, in whichever way."""
  return ["setpriv", "--pdeathsig", "KILL", *words]


@contextlib.contextmanager
def _ending(process: subprocess.Popen[str]) -> Any:
  try:
    yield process
  finally:
    process.kill()
    process.wait()


def _run(*words: str) -> None:
  done = subprocess.run(words, capture_output=True, text=True, check=False)
  if done.returncode:
    raise ValueError(f"netbench: `{' '.join(words)}` failed: {done.stderr.strip()}")
