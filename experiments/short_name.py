"""The name of a part as folders, labels and titles show it; without JAX, as reports are."""

import hashlib
from pathlib import Path

LONGEST = 200  # bytes of a file's name, of which file systems take 255
KINDS = ("spec", "algorithm", "wrapper", "model", "data", "partition", "optimizer", "schedule", "times", "barrier")


def short_name(name: str) -> str:
  """An entry of a registry as it is; of an address the function's name, or the file's if a word like SPEC says no more.

  mine.py:net -> net, mine.py:SPEC -> mine, mine.py:FAST_SPEC -> FAST.
  """
  where, found, variable = name.rpartition(":")
  word = variable.removesuffix("_SPEC")
  if not found or word.lower() not in KINDS:
    return word
  file = Path(where if where.endswith(".py") else where.replace(".", "/"))
  return word if file.stem == "__main__" else file.parent.name if file.stem == "__init__" else file.stem


def slug(text: str) -> str:
  """Return a label, or another name that a user gave, as the name of a file or a folder, the same each time."""
  name = "".join(c if c.isalnum() or c in "-_." else "_" for c in text)
  name = name if name.strip(".") else name.replace(".", "_")  # . and .. are folders
  if len(name.encode()) <= LONGEST:
    return name
  return f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
