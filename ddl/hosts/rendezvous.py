"""Names that `ddl.elastic.supervision` imports, until it is deleted."""

import socket
import threading
from typing import Any

from ddl.hosts.process_info import host_port

__all__ = ["host_port", "resolved"]


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
