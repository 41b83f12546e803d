"""Start two processes that print the addresses at which they and their children listen, one line per process."""

import json
import os
import sys
from pathlib import Path

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from ddl import hosts

LISTENS = "0A"  # in /proc/net/tcp


def sockets(pid: str) -> set[str]:
  """Return the inodes of the sockets that a process has open."""
  links = [os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()]
  return {link[8:-1] for link in links if link.startswith("socket:[")}


def listening() -> list[str]:
  """Return the local addresses at which this process and its children listen, in the kernel's format."""
  me = os.getpid()
  children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
  own_sockets = set().union(*map(sockets, (str(me), *children)))
  rows = [row.split() for file in ("tcp", "tcp6") for row in Path(f"/proc/net/{file}").read_text().splitlines()[1:]]
  return [row[1].partition(":")[0] for row in rows if row[3] == LISTENS and row[9] in own_sockets]


def main() -> None:
  """Run one of the two processes."""
  hosts.join(60, 30)
  addresses = hosts.exchange(json.dumps(listening()))
  if hosts.is_main():
    print("\n".join(f"listening {line}" for line in addresses), flush=True)


if __name__ == "__main__":
  sys.exit(main() if hosts.processes() > 1 else hosts.launch(2, hosts.command_line()))
