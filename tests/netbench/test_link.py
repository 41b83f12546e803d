"""The link's arithmetic by a clock of the test's, and its process on sockets in place of tun devices."""

import socket
import subprocess
import sys
import time

import pytest

from experiments.netbench import link
from experiments.netbench.link import Link, Shaper

HEADER = bytes(link.HEADER)


def packet(destination, size=100):
  """An IPv4 packet, of which the link reads version and destination alone."""
  return HEADER + bytes([0x45]) + bytes(15) + socket.inet_aton(destination) + bytes(size - 20)


def test_packets_leave_one_after_the_other_and_arrive_after_the_latency():
  shaper = Shaper(8e6, 0.01, 2)  # a byte a microsecond
  assert shaper.arrival(0, 1000, 5.0) == pytest.approx(5.011)
  assert shaper.arrival(0, 1000, 5.0) == pytest.approx(5.012)  # behind the first
  assert shaper.arrival(1, 1000, 5.0) == pytest.approx(5.011)  # another host has a link of its own
  assert shaper.arrival(0, 1000, 6.0) == pytest.approx(6.011)  # an idle link saves nothing up
  shaper.rate, shaper.latency = 16e6, 0.1
  assert shaper.arrival(0, 1000, 7.0) == pytest.approx(7.1005)


def test_no_more_is_read_than_soon_leaves():
  shaper = Shaper(8e6, 0.01, 1)
  shaper.arrival(0, 100_000, 5.0)
  assert shaper.reads_at(0) == pytest.approx(5.1 - link.AHEAD)


@pytest.fixture
def ends():
  """A link between two hosts, whose tun devices are pairs of sockets; and the hosts' ends."""
  pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
  carried = Link(Shaper(1e9, 0.0, 2), [a.fileno() for a, _ in pairs], [socket.inet_aton(f"10.0.0.{i}") for i in (1, 2)])
  for _, end in pairs:
    end.setblocking(False)
  yield carried, pairs[0][1], pairs[1][1]
  for pair in pairs:
    for each in pair:
      each.close()


def carry(carried):
  read, write = socket.socketpair()
  with read, write:
    write.sendall(b"!")  # so that no step waits
    for _ in range(8):
      carried.step(read.fileno())
      time.sleep(0.001)


def test_packets_go_to_their_host_and_others_nowhere(ends):
  carried, one, two = ends
  for destination in ("10.0.0.2", "10.0.0.9", "224.0.0.1", "10.0.0.1"):
    one.send(packet(destination))
  one.send(HEADER + b"\x60" + bytes(40))  # IPv6
  carry(carried)
  assert two.recv(2000) == packet("10.0.0.2")
  assert one.recv(2000) == packet("10.0.0.1")
  for each in (one, two):
    with pytest.raises(BlockingIOError):
      each.recv(2000)


def test_the_process_ends_with_its_standard_input():
  one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
  with one, two:
    words = [sys.executable, "-I", "-S", link.__file__, "1e9", "0", f"{one.fileno()}:10.0.0.1"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[one.fileno()], text=True)
    two.settimeout(10)
    two.send(packet("10.0.0.1"))
    assert two.recv(2000) == packet("10.0.0.1")
    process.communicate("1e6 0.5\n", timeout=10)
    assert process.returncode == 0
