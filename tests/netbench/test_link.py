"""The link's packet times on a simulated clock, and its process on sockets instead of tun devices."""

import socket
import subprocess
import sys
import time

import pytest

from experiments.netbench import link
from experiments.netbench.link import Link, Shaper

HEADER = bytes(link.HEADER)


def packet(destination, size=100):
  """Return an IPv4 packet with only the fields that the link reads: version and destination."""
  return HEADER + bytes([0x45]) + bytes(15) + socket.inet_aton(destination) + bytes(size - 20)


def test_packets_are_sent_one_after_the_other_and_arrive_after_the_latency():
  shaper = Shaper(8e6, 0.01, 2)  # 1 byte per microsecond
  assert shaper.arrival(0, 1000, 5.0) == pytest.approx(5.011)
  assert shaper.arrival(0, 1000, 5.0) == pytest.approx(5.012)  # behind the first
  assert shaper.arrival(1, 1000, 5.0) == pytest.approx(5.011)  # each host has a separate link
  assert shaper.arrival(0, 1000, 6.0) == pytest.approx(6.011)  # idle time gives no credit
  shaper.rate, shaper.latency = 16e6, 0.1
  assert shaper.arrival(0, 1000, 7.0) == pytest.approx(7.1005)


def test_packets_are_read_only_shortly_before_they_are_sent():
  shaper = Shaper(8e6, 0.01, 1)
  shaper.arrival(0, 100_000, 5.0)
  assert shaper.reads_at(0) == pytest.approx(5.1 - link.AHEAD)


@pytest.fixture
def ends():
  """Return a link between two hosts, with pairs of sockets instead of tun devices, and the hosts' sockets."""
  pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
  hosts_link = Link(
    Shaper(1e9, 0.0, 2), [a.fileno() for a, _ in pairs], [socket.inet_aton(f"10.0.0.{i}") for i in (1, 2)]
  )
  for _, end in pairs:
    end.setblocking(False)
  yield hosts_link, pairs[0][1], pairs[1][1]
  for pair in pairs:
    for end in pair:
      end.close()


def forward(hosts_link):
  read, write = socket.socketpair()
  with read, write:
    write.sendall(b"!")  # prevents steps from waiting
    for _ in range(8):
      hosts_link.step(read.fileno())
      time.sleep(0.001)


def test_packets_reach_their_host_and_others_are_dropped(ends):
  hosts_link, one, two = ends
  for destination in ("10.0.0.2", "10.0.0.9", "224.0.0.1", "10.0.0.1"):
    one.send(packet(destination))
  one.send(HEADER + b"\x60" + bytes(40))  # IPv6
  forward(hosts_link)
  assert two.recv(2000) == packet("10.0.0.2")
  assert one.recv(2000) == packet("10.0.0.1")
  for end in (one, two):
    with pytest.raises(BlockingIOError):
      end.recv(2000)


def test_process_exits_when_its_standard_input_is_closed():
  one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
  with one, two:
    words = [sys.executable, "-I", "-S", link.__file__, "1e9", "0", f"{one.fileno()}:10.0.0.1"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[one.fileno()], text=True)
    two.settimeout(10)
    two.send(packet("10.0.0.1"))
    assert two.recv(2000) == packet("10.0.0.1")
    process.communicate("1e6 0.5\n", timeout=10)
    assert process.returncode == 0
