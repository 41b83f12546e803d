"""The name of a part as folders, labels and titles show it; without JAX, as reports are."""

from pathlib import Path

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
