"""Names that `ddl.elastic.supervision` imports, until it is deleted."""

import json
from typing import Any

EVERY = 1.0


def said_in(line: bytes) -> dict[str, Any]:
  """Return what a line of JSON has; {} for another one."""
  try:
    said = json.loads(line) if line else {}
  except (ValueError, RecursionError):
    return {}
  return said if isinstance(said, dict) else {}
