"""`python run.py list`: the algorithms with what they declare, the models, data sets and other parts, the clusters."""

import re
import textwrap
from collections.abc import Callable
from typing import Any

from absl import flags

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.api import Spec
from ddl.data import DATA
from ddl.data.partition import PARTITIONS
from ddl.events import times
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.models import MODELS
from ddl.perf.hardware import CLUSTERS
from ddl.perf.tables import TABLES, TITLES
from ddl.perf.tables.totals import params
from experiments.commands.config_flag import CommandLine
from experiments.config.experiment import NETWORK, Network
from experiments.config.factories import keywords
from experiments.config.optimizers import OPTIMIZERS, SCHEDULES

MARKDOWN = flags.DEFINE_bool("markdown", False, "the table of algorithms as it stands in the README")

HEAD = ("name", "optimization", "scheduling", "pattern", "what is sent", "hyper-parameters", "paper")


def main(_line: CommandLine | None = None) -> int:
  """Prints it; returns the exit code."""
  if MARKDOWN.value:
    print(markdown())
    return 0
  widths = [max(len(row[i]) for row in [HEAD, *rows()]) for i in range(len(HEAD))]
  for row in [HEAD, *rows()]:
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
  print("\nall are data parallel; the axes are those of Langer et al. 2020, arXiv 2007.03970\n")
  kinds = {"model": MODELS, "data": DATA, "partition": PARTITIONS, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
  kinds |= {"times": TIMES, "barrier": BARRIERS}
  for kind, registry in kinds.items():
    print(f"config.{kind}.name")
    for name, factory in registry.items():
      print(f"  {name:14} {_keys(factory)}".rstrip())
      if kind in ("times", "barrier"):
        print(f"{'':17}{str(factory.__doc__).splitlines()[0].partition(' ValueError')[0]}")
    if kind == "times":
      print(str(times.__doc__).partition(":\n")[2].rstrip())  # the keys that all of them have
  print("config.network")
  for key, meaning in NETWORK.items():
    print(f"  {key:17} = {getattr(Network, key)!s:5} {meaning}")
  print("--model of plan and scale: layer tables")
  for name, table in TABLES.items():
    print(f"  {name:17} {TITLES[name]}, {params(table):,} parameters")
  print("--cluster")
  for name, cluster in CLUSTERS.items():
    print(f"  {name:17} {cluster.title}")
    print(textwrap.fill(cluster.source, 120, initial_indent=" " * 22, subsequent_indent=" " * 22))
  return 0


def rows() -> list[tuple[str, ...]]:
  """A line per algorithm, from its `Spec` alone."""
  return [(name, *spec.taxonomy[1:], _hyper(spec), spec.citation) for name, spec in (COLLECTIVE | SERVER).items()]


def markdown() -> str:
  """The same as a Markdown table."""
  lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
  for name, *rest in rows():
    lines.append(f"| `{name}` | " + " | ".join(rest) + " |")
  return "\n".join(lines)


def _keys(factory: Callable[..., Any]) -> str:
  return ", ".join(re.sub(r"tuple\[.*?\]", "tuple", str(parameter)) for parameter in keywords(factory).values())


def _hyper(spec: Spec) -> str:
  return ", ".join(f"{name} ({h.symbol})" for name, h in spec.hyper.items()) or "-"
