"""A few lines on a run and on a comparison, as a notebook shows them; and values by name."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ddl.perf.units import counted
from experiments.report import cluster_section, formats, headline, reader, table_rows, wording
from experiments.report.grid import grid_findings
from experiments.short_name import short_name
from experiments.train import run_dir

Value = TypeVar("Value")
SHOWN = 12  # algorithms in the text of a comparison
DAMAGED = (OSError, ValueError, KeyError, TypeError, IndexError)  # of a folder, that a text must not raise


class Named(dict[str, Value]):
  """Values by name; one that is not there is refused with the names that are."""

  def __init__(self, what: str, values: Mapping[str, Value]):
    super().__init__(values)
    self.what = what

  def __missing__(self, name: str) -> Value:
    raise KeyError(f"no {self.what} {name!r}; there are: {', '.join(self)}")


def of_run(folder: Path) -> str:
  """Its folder, what was trained, and the last evaluation."""
  try:
    config = run_dir.read_json(folder / run_dir.CONFIG)
    names = {key: short_name(config[key]["name"]) for key in ("algorithm", "model", "data")}
    text = f"{names['algorithm']}, {names['model']} on {names['data']}; {counted(config['workers'], 'worker')}"
    text += f", seed {config['seed']}"
    last = json.loads((folder / run_dir.METRICS).read_text(encoding="utf-8").splitlines()[-1])
    found = [f"{formats.NAMES[name]} {formats.figure(name, last[name])}" for name in reader.SCORES if name in last]
    text += f"\n  step {last['step']:,} of {config['steps']:,}: {', '.join(found)}"
  except DAMAGED as error:
    text = f"nothing to show: {error}"
  return f"Run in {folder}\n  {text}"


def of_comparison(folder: Path) -> str:
  """Its folder, labels, seeds and target, the first sentence of the page, and its table if that is short."""
  try:
    found = reader.read(folder)
    table = table_rows.rows(found)
    labels = formats.listed([row.label for row in table], SHOWN)
    seeds = formats.listed([str(seed) for seed in found.info["seeds"]], SHOWN)
    goal = f"{formats.NAMES[found.metric]} {found.goal}"
    first = (grid_findings if found.info["grid"] else headline).headline
    texts = [
      f"{counted(len(table), 'label')}: {labels}",
      f"{'seed' if len(found.info['seeds']) == 1 else 'seeds'}: {seeds}; target: {goal}",
      first(table, found),
      *(f"{each.sentence.partition('; ')[0].rstrip('.')}." for each in cluster_section.on_clusters(found)),
    ]
    text = "\n".join(
      textwrap.fill(each, wording.WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
      for each in texts
    )
    if len(table) <= SHOWN:
      unseen = f"; {table_rows.EARLY}: {wording.BEFORE.lower()}" * any(row.early for row in table)
      text = "\n".join([text, "", *wording.text_lines(found, table), f"{wording.MARKS}{unseen}"])
  except DAMAGED as error:
    text = f"  nothing to show: {error}"
  return f"Compared in {folder}\n{text}"
