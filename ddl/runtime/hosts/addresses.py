"""Names and addresses of hosts: looked up within a bound, tried again, and as text."""

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PAUSE = 0.2  # seconds between two attempts


def host_port(host: str, port: int) -> str:
  """Return HOST:PORT, with an IPv6 address in brackets."""
  return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def retry(attempt: Callable[[float], T], until: float, failed: Callable[[str], str]) -> T:
  """Return what the attempt, which is told the seconds left, returns once it raises no OSError.

  Raises:
    ValueError: at the time `until`, with the words that `failed` has for the last reason.
  """
  while True:
    try:
      return attempt(max(until - time.monotonic(), 0.1))
    except OSError as error:
      why = _reason(error)
    if time.monotonic() + PAUSE > until:
      raise ValueError(failed(why))
    time.sleep(PAUSE)


def _reason(error: OSError) -> str:
  if isinstance(error, socket.gaierror):
    return "unknown host"
  if isinstance(error, TimeoutError):
    return "no answer"
  return (error.strerror or str(error)).lower()


def resolved(host: str, port: int, seconds: float) -> list[tuple[int, Any]]:
  """Return families and addresses of a host, IPv4 first. Raises OSError, after `seconds` if no name server answers."""
  found: list[Any] = [TimeoutError()]

  def look_up() -> None:
    try:
      found[0] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
      found[0] = error if isinstance(error, OSError) else socket.gaierror()

  thread = threading.Thread(target=look_up, daemon=True)
  thread.start()
  thread.join(seconds)
  if isinstance(found[0], OSError):
    raise found[0]
  # All hosts take the same address first, even where one has no IPv6: process 0 listens at one alone.
  return sorted(((family, address) for family, _, _, _, address in found[0]), key=lambda at: at[0] != socket.AF_INET)


def is_loopback(host: str) -> bool:
  """Return whether this name or address is this machine's alone."""
  try:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False
