"""Labels with different seeds: which each has, which are compared, and the command that trains the others."""

import shlex
from collections.abc import Sequence

from ddl.perf.units import counted
from ddl.report import formats
from ddl.report.cells import Cell
from ddl.report.reader import Comparison, seed_of

APART = "Not all labels have the same seeds"


def own_seeds(comparison: Comparison) -> dict[str, str]:
  """By label, the number of seeds it has; {} where all have the same seeds."""
  whole = comparison.whole or comparison
  return {label: str(len(each)) for label, each in whole.seeds.items()} if comparison.whole or whole.disjoint else {}


def seeds(comparison: Comparison) -> str:
  """How many seeds there are, for a heading."""
  if comparison.disjoint:
    return f"{formats.between([len(each) for each in comparison.seeds.values() if each], 'seed')}, none common to all"
  text = counted(len(comparison.info["seeds"]), "seed")
  most = max(map(int, own_seeds(comparison).values()), default=0)
  return f"the {text} that all have, of up to {most}" if most else text


def apart(comparison: Comparison) -> str:
  """Which labels have seeds that others lack, what is compared then, and how to train the others; "" for none."""
  if not own_seeds(comparison):
    return ""
  groups: dict[tuple[int, ...], list[str]] = {}  # labels by their seeds
  for label, names in (comparison.whole or comparison).seeds.items():
    groups.setdefault(tuple(map(seed_of, names)), []).append(label)
  there = "; ".join(f"{formats.listed(labels, 6)}: {_numbers(each)}" for each, labels in groups.items())
  used = (
    "no seed is common to all, so that nothing is ranked"
    if comparison.disjoint
    else f"figures, ranks and tests are of {_numbers(comparison.info['seeds'])}, which all have"
  )
  wanted = ",".join(map(str, sorted({seed for each in groups for seed in each})))
  where = f"--workdir={shlex.quote(str(comparison.folder))}"
  command = f"python run.py compare --resume {where} --config.compare.seeds={wanted}"
  return f"{there}; {used}. `{command}` trains the others."


def _numbers(seeds: Sequence[int]) -> str:
  word = "seed" if len(seeds) == 1 else "seeds"
  return f"{word} {formats.listed(list(map(str, seeds)))}" if seeds else "none"


def seed_column(comparison: Comparison) -> dict[str, list[Cell]]:
  """The seeds that each label has, where these are not the same for all."""
  own = own_seeds(comparison)
  return {"own seeds": [Cell(text) for text in own.values()]} if own else {}
