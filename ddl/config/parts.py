"""The parts of an experiment as frozen values: factories with their settings, and the network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from ddl.names import short_name
from ddl.ranges import Range, check_fields, integers

PARTS = ("model", "data", "partition", "optimizer", "schedule", "times", "barrier")  # beside algorithm and wrapper


@dataclass(frozen=True)
class Part:
  """A factory by its name, with all its keyword arguments, which can also be read as attributes."""

  name: str
  settings: Mapping[str, Any] = field(default_factory=dict)

  def __getattr__(self, key: str) -> Any:
    if key != "settings" and key in self.settings:
      return self.settings[key]
    raise AttributeError(f"'{key}' is no setting of this part")

  @property
  def short_name(self) -> str:
    """As `short_name` has it: without the file of an object of the user's own."""
    return short_name(self.name)

  def get(self, key: str, default: Any = None) -> Any:
    """The setting, or the default where the factory does not take it."""
    return self.settings.get(key, default)

  def to_json(self) -> dict[str, Any]:
    """`name` and the settings."""
    return {"name": self.name, **jsonable(self.settings)}


MessageSeconds = Annotated[float, Range(0, 1e30)]  # also those that a cluster's slowest links predict


@dataclass(frozen=True)
class Network:
  """Cost of messages in virtual time."""

  message_seconds: MessageSeconds = 0.0
  service_seconds: MessageSeconds = 0.0
  exchange_seconds: MessageSeconds | None = None
  overlap: bool = True
  # Blocks are simulated one by one: more of them than a cache has lines add time, not information.
  blocks: Annotated[int, integers(1, 1024)] = 16

  def __post_init__(self) -> None:
    """Raises ValueError for a number out of its range."""
    check_fields(self, "config.network.")


NETWORK = {  # field of `Network`: meaning
  "message_seconds": "of a message, one way, worker to server",
  "service_seconds": "for which the server is busy with a message",
  "exchange_seconds": "of one collective; None: a tree of messages",
  "overlap": "in virtual time, of a collective's message with the steps that need not wait for it",
  "blocks": "that a lock-free visit reads and adds one by one",
}


def jsonable(value: Any) -> Any:
  """Tuples as lists, NumPy numbers as numbers: what a JSON file gives back."""
  if isinstance(value, Mapping):
    return {k: jsonable(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [jsonable(v) for v in value]
  return value.item() if isinstance(value, np.generic) else value
