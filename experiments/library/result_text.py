"""A few lines on a run and on a comparison, as a notebook shows them; and values by name."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ddl import files
from ddl.perf.units import counted
from experiments.report import formats, reader, table_rows
from experiments.report.grid import grid_findings
from experiments.report.inference import seed_sets
from experiments.report.sections import cluster_section
from experiments.report.sentences import headline, wording
from experiments.short_name import short_name
from experiments.train.folder import run_dir

Value = TypeVar("Value")
SHOWN = 12  # algorithms in the text of a comparison
DAMAGED = (OSError, ValueError, KeyError, TypeError, IndexError)  # of a folder, that a text must not raise


class Named(dict[str, Value]):
  """Values by name; one that is not there is refused with the names that are."""

  def __init__(self, what: str, values: Mapping[str, Value], use: str = ""):
    """use: what one does with a value, for its text."""
    super().__init__(values)
    self.what, self.use = what, use

  def __repr__(self) -> str:
    """The names, and what they are for."""
    names = textwrap.fill(", ".join(map(repr, self)), wording.WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(filter(None, [f"{counted(len(self), self.what)} by name:", names, self.use]))

  def __missing__(self, name: str) -> Value:
    raise KeyError(f"no {self.what} {name!r}; there are: {', '.join(self)}")


def of_run(folder: Path) -> str:
  """Its folder, what was trained, and the last evaluation."""
  try:
    config = files.read_json(folder / run_dir.CONFIG)
    names = {key: short_name(config[key]["name"]) for key in ("algorithm", "model", "data")}
    text = f"{names['algorithm']}, {names['model']} on {names['data']}; {counted(config['workers'], 'worker')}"
    text += f", seed {config['seed']}"
    last = json.loads((folder / run_dir.METRICS).read_text(encoding="utf-8").splitlines()[-1])
    found = [f"{formats.NAMES[name]} {formats.figure(name, last[name])}" for name in reader.SCORES if name in last]
    text += f"\n  step {last['step']:,} of {config['steps']:,}: {', '.join(found)}"
    text += "".join(f"\n  {run_dir.change_text(each)}" for each in run_dir.input_changes(folder))
  except DAMAGED as error:
    text = f"nothing to show: {error}"
  return f"Run in {folder}\n  {text}"


def of_sweep(folder: Path) -> str:
  """Its folder, and the best setting of each label with its score."""
  try:
    lines = []
    for label, entry in files.read_json(folder / run_dir.TUNED)["algorithms"].items():
      best = {key: value for keys in entry["best"].values() for key, value in keys.items()}
      found = ", ".join(f"{key} {f'{value:.4g}' if isinstance(value, float) else value}" for key, value in best.items())
      scores = [
        f"{name} {formats.figure(f'test_{name}', value)}" for name, value in (entry["validation"] or {}).items()
      ]
      lines.append(f"  {label}: {found}; {' and '.join(scores)} on the validation split, best of "
                   f"{counted(len(entry['trials']), 'trial')}")  # fmt: skip
    lines += [f"  {run_dir.change_text(each)}" for each in run_dir.input_changes(folder)]
    text = "\n".join(lines)
  except DAMAGED as error:
    text = f"  nothing to show: {error}"
  return f"Swept in {folder}\n{text}"


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
      *([f"{seed_sets.APART}: {told}"] if (told := seed_sets.apart(found)) else []),
      *(f"{each.sentence.partition('; ')[0].rstrip('.')}." for each in cluster_section.on_clusters(found)),
      *map(run_dir.change_text, found.info.get("changed_inputs", [])),
    ]
    text = "\n".join(
      textwrap.fill(each, wording.WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
      for each in texts
    )
    if len(table) <= SHOWN:
      signs = [(table_rows.EARLY, wording.BEFORE), (table_rows.FELL, wording.AGAIN)]
      told = [f"; {sign}: {words.lower()}" for sign, words in signs if any(sign in row.signs for row in table)]
      marks = textwrap.fill("".join([wording.MARKS, *told]), wording.WIDTH)
      text = "\n".join([text, "", *wording.text_lines(found, table), marks])
  except DAMAGED as error:
    text = f"  nothing to show: {error}"
  return f"Compared in {folder}\n{text}"
