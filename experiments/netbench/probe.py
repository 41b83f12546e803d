"""Measure latency and throughput of a plain TCP connection from host 0 to host 1.

On host 1: python -I -S probe.py server ADDRESS; on host 0: python -I -S probe.py client ADDRESS NBYTES
"""

import json
import socket
import statistics
import sys
import time

PORT = 7700
PINGS = 20  # bytes sent one by one to measure the latency
BLOCK = 2**18  # maximum bytes per read


def serve(address: str) -> None:
  """Serve one connection: echo PINGS single bytes, then read a stream and reply with one byte at its end."""
  with socket.create_server((address, PORT)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
  with connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(PINGS):
      connection.sendall(connection.recv(1))
    left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    while left:
      left -= len(connection.recv(min(BLOCK, left)))
    connection.sendall(b"!")


def measure(address: str, nbytes: int) -> dict[str, float]:
  """Return "latency" in seconds, one way, and "rate" in bits per second, measured by sending `nbytes` bytes."""
  with socket.create_connection((address, PORT), timeout=30) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pings = []
    for _ in range(PINGS):
      began = time.perf_counter()
      connection.sendall(b"?")
      connection.recv(1)
      pings.append(time.perf_counter() - began)
    latency = statistics.median(pings) / 2
    began = time.perf_counter()
    connection.sendall(nbytes.to_bytes(8, "big") + bytes(nbytes))
    connection.recv(1)
    took = time.perf_counter() - began - 2 * latency
  return {"latency": latency, "rate": 8 * nbytes / took}


if __name__ == "__main__":
  if sys.argv[1] == "server":
    serve(sys.argv[2])
  else:
    print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
