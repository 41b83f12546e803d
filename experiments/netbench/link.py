"""Emulate the link between hosts: forward their packets with a given bandwidth and latency.

python -I -S link.py RATE LATENCY FD:ADDRESS ...   (bits per second; seconds one way; one tun device per host)

Each host has one link, as if connected to a switch: its packets leave one after the other at the bandwidth and
arrive after the latency. A line `RATE LATENCY` on standard input changes both; the process exits when standard input
is closed. The script uses only the standard library, so that it starts quickly and stays small.
"""

import contextlib
import heapq
import os
import select
import socket
import sys
import time

AHEAD = 0.004  # seconds of packets to read ahead, so that a late wake-up leaves no gap on the link
TICK = 0.0004  # minimum seconds between wake-ups, which cost CPU time; packets arrive up to TICK / 2 early or late
PACKET = 65536
HEADER = 10  # bytes of the virtio header, which is forwarded with each packet; it marks the checksum as not computed


class Shaper:
  """Compute departure and arrival times of packets, in seconds of the caller's clock."""

  def __init__(self, rate: float, latency: float, hosts: int):
    """Create idle links. rate: bits per second of each host, one way; latency: seconds, one way."""
    self.rate, self.latency = rate, latency
    self._free = [0.0] * hosts  # when the last packet read from each host departs

  def arrival(self, host: int, nbytes: int, now: float) -> float:
    """Return when a packet that `host` sends now will arrive: max(now, last departure) + 8 nbytes / rate + latency."""
    self._free[host] = max(now, self._free[host]) + 8 * nbytes / self.rate
    return self._free[host] + self.latency

  def reads_at(self, host: int) -> float:
    """Return when to read the next packet of `host`; until then the packet stays in the queue of the host's device."""
    return self._free[host] - AHEAD


class Link:
  """A switch that forwards packets between tun devices."""

  def __init__(self, shaper: Shaper, devices: list[int], addresses: list[bytes]):
    """Make the devices, given as file descriptors, non-blocking. addresses: IPv4 addresses of the hosts as bytes."""
    self.shaper, self._devices = shaper, devices
    self._host = {address: host for host, address in enumerate(addresses)}
    self._under_way: list[tuple[float, int, int, bytes]] = []  # heap of (arrival, number, receiver, packet)
    self._number, self._last = 0, 0.0
    for device in devices:
      os.set_blocking(device, False)

  def step(self, commands: int) -> bool:
    """Wait for the next event and forward packets; return whether the file descriptor `commands` is readable."""
    time.sleep(max(0.0, self._last + TICK - time.monotonic()))
    now = time.monotonic()
    waits = [self.shaper.reads_at(host) for host in range(len(self._devices))]
    ready = [device for device, at in zip(self._devices, waits, strict=True) if at <= now]
    times = [at for at in waits if at > now] + [arrival - TICK / 2 for arrival, *_ in self._under_way[:1]]
    timeout = max(0.0, min(times) - now) if times else None
    readable, _, _ = select.select([*ready, commands], [], [], timeout)
    self._last = now = time.monotonic()
    for host, device in enumerate(self._devices):
      if device in readable:
        self._take(host, device, now)
    while self._under_way and self._under_way[0][0] <= now + TICK / 2:
      _, _, receiver, packet = heapq.heappop(self._under_way)
      with contextlib.suppress(OSError):  # a full queue or an exited host: the packet is lost, as on any link
        os.write(self._devices[receiver], packet)
    return commands in readable

  def _take(self, host: int, device: int, now: float) -> None:
    """Read the packets of a host that depart within AHEAD seconds from now."""
    while self.shaper.reads_at(host) <= now:
      try:
        packet = os.read(device, PACKET)
      except BlockingIOError:
        return
      receiver = self._host.get(packet[HEADER + 16 : HEADER + 20]) if packet[HEADER] >> 4 == 4 else None
      if receiver is not None:  # packets for other addresses are dropped
        self._number += 1
        arrival = self.shaper.arrival(host, len(packet) - HEADER, now - TICK / 2)
        heapq.heappush(self._under_way, (arrival, self._number, receiver, packet))


def main() -> None:
  """Forward packets until standard input is closed."""
  with contextlib.suppress(OSError):  # a real link would not compete with the hosts for cores
    os.setpriority(os.PRIO_PROCESS, 0, -20)
  rate, latency, *hosts = sys.argv[1:]
  pairs = [host.split(":") for host in hosts]
  shaper = Shaper(float(rate), float(latency), len(pairs))
  link = Link(shaper, [int(fd) for fd, _ in pairs], [socket.inet_aton(address) for _, address in pairs])
  rest = b""
  while True:
    if link.step(0):
      text = os.read(0, PACKET)
      if not text:
        return
      *lines, rest = (rest + text).split(b"\n")
      for line in lines:
        shaper.rate, shaper.latency = map(float, line.split())


if __name__ == "__main__":
  main()
