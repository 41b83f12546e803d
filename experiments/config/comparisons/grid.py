"""The grid of a comparison: its labels, each run at every point of the product of some keys' values."""

import copy
import difflib
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.config.base import base, renamed
from experiments.config.comparisons.variants import apply, check_labels
from experiments.config.parts.factories import Config
from experiments.config.unread_keys import reads
from experiments.grid_point import Place, quoted, text, words

WHERE = "config.compare.grid"
COUNTED = ("eval_every", "schedule.warmup", "schedule.every", "schedule.at")  # in steps, scaled as these are
AXES = 3  # keys with several values that a page has pictures for
REFUSED = {  # sections and keys that no grid can have, and why
  "model": "a comparison is of algorithms on one model",
  "data": "a comparison is of algorithms on one data set",
  "seed": "the seeds are config.compare.seeds",
  "compare": "it is what is compared, not how it is run",
  "sweep": "a comparison tunes nothing",
}


class Variant(NamedTuple):
  """A label at a point of the grid."""

  config: Config
  place: Place


def expanded(config: Config, labels: Mapping[str, Config]) -> dict[str, Variant]:
  """Each label at each point: by label, then in the order of the grid; at one where there is none.

  A key that a label's algorithm (or optimizer, ...) does not read is left out of its points, which then coincide. The
  value of a point replaces what the label sets. Where the grid does not have `steps`, they follow so that workers x
  batch x steps stays as it is, rounded to whole steps; evaluations and the schedule's steps are scaled alike.

  Raises:
    ValueError: for a key that does not exist or that no label reads, and for a value of the wrong type or a repeated
      one; the line names config.compare.grid.
  """
  grid = values(config)
  if not grid:
    return {label: Variant(variant, Place(label, {})) for label, variant in labels.items()}
  defaults = base()
  for key in grid:
    _check_key(key, labels.values())
  several = [key for key in grid if len(grid[key]) > 1]
  out: dict[str, Variant] = {}
  for group, variant in labels.items():
    for chosen in product(*grid.values()):
      made, point = _at(variant, dict(zip(grid, chosen, strict=True)), defaults)
      label = ", ".join([group, *(f"{words(key, several)} {text(point[key])}" for key in several if key in point)])
      if out.setdefault(label, Variant(made, Place(group, point))).place != (group, point):
        raise ValueError(f"{WHERE}: two labels would be called '{label}'; change one of config.compare.algorithms")
  for key, given in grid.items():
    found = {repr(each.place.point[key]) for each in out.values() if key in each.place.point}
    if not found:
      raise ValueError(f"{WHERE} has {key}, which no label reads: {', '.join(map(quoted, labels))}")
    if len(found) < len(given):
      raise ValueError(f"{WHERE} has a value of {key} twice: {', '.join(map(str, given))}")
  check_labels(out)
  return out


def values(config: Config) -> dict[str, tuple[Any, ...]]:
  """Key -> its values, in the order of the config. ValueError for anything else than keys with values."""
  given = config.compare.grid
  if not all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in given):
    raise ValueError(f"{WHERE} is {given!r}; it maps keys to values, such as {{'workers': (1, 2, 4)}}")
  grid = {key: each if isinstance(each, tuple) else tuple(each) if isinstance(each, list) else (each,)
          for key, each in given}  # fmt: skip
  if empty := [key for key, each in grid.items() if not each]:
    raise ValueError(f"{WHERE} has no values for {empty[0]}; give one or more, such as (1, 2, 4)")
  if len(several := [key for key, each in grid.items() if len(each) > 1]) > AXES:
    raise ValueError(f"{WHERE} has {len(several)} keys with several values ({', '.join(several)}); at most {AXES} fit")
  return grid


def _check_key(key: str, variants: Iterable[Config]) -> None:
  if why := REFUSED.get(key.partition(".")[0]):
    raise ValueError(f"{WHERE} has {key}: {why}")
  known: dict[str, None] = {}
  for config in variants:
    for name, section in config.items():
      if name not in REFUSED:
        known |= dict.fromkeys([f"{name}.{each}" for each in section] if isinstance(section, ConfigDict) else [name])
  if key not in known:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else "keys are such as workers, batch or algorithm.period"
    raise ValueError(f"{WHERE} has no key '{key}' of the config: {hint}")


def _at(variant: Config, point: dict[str, Any], defaults: Config) -> tuple[Config, dict[str, Any]]:
  """The label's config at a point, and those keys of the point that it reads, with the values as they are read."""
  made, found = copy.deepcopy(variant), dict[str, Any]()
  for key in sorted(point, key=lambda key: not key.endswith(".name")):  # a name decides which keys are read
    section, _, name = key.rpartition(".")
    if reads(made, key):
      changes = {section: {name: point[key]}} if section else {name: point[key]}
      made = renamed(made, changes)
      apply(made, defaults, changes, WHERE)
      found[key] = made[section][name] if section else made[name]
  if "steps" not in point:
    _keep_budget(made, variant, found)
  return made, {key: found[key] for key in point if key in found}


def _keep_budget(made: Config, before: Config, point: Mapping[str, Any]) -> None:
  """Sets the steps that make as many examples as before, and all that is counted in steps alike."""
  examples, each = before.workers * before.batch * before.steps, made.workers * made.batch
  if each == before.workers * before.batch or each < 1:  # a number that is none is refused later, in its own words
    return
  made.steps = max(1, round(examples / each))
  for key in COUNTED:
    section, _, name = key.rpartition(".")
    part = made[section] if section else made
    count = part.get(name)
    if key in point or not count:
      continue
    scaled = tuple(max(1, round(each * made.steps / before.steps)) for each in np.atleast_1d(count))
    part[name] = scaled if isinstance(count, tuple) else scaled[0]
