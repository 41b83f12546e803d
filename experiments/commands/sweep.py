"""`python run.py sweep`: tunes each algorithm with the same number of trials, on a validation split."""

import copy
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from ml_collections import ConfigDict
from scipy.stats import qmc

from ddl import memory
from ddl.runtime import hosts
from experiments.commands import flags
from experiments.commands.compare import ONLY, TUNED
from experiments.config import experiment as configs
from experiments.config.factories import as_type, keywords, named
from experiments.config.variants import only, slug, variants
from experiments.train import build, compilation_cache, run_dir, train_loop
from experiments.train import resume as recorded
from experiments.train.evaluate import Evaluator

TRIALS = absl_flags.DEFINE_integer("trials", 0, "trials per algorithm; 0: config.sweep.trials", lower_bound=0)


def main(config: Any) -> int:
  """Runs the sweep; returns the exit code."""
  if TUNED.value:
    raise ValueError("--tuned is for compare; a sweep makes such a file and reads none")
  stored = recorded.record("sweep", config)
  if config.data.validation is None:
    config.data.validation = config.sweep.validation
  if not config.data.validation:
    raise ValueError("a sweep needs a validation split; set config.sweep.validation, e.g. to 0.2")
  trials = TRIALS.value or config.sweep.trials
  if trials < 1:
    raise ValueError(f"config.sweep.trials is {trials}: invalid: must be at least 1")
  every = variants(config)
  for label in config.sweep.space:
    named("label (which config.sweep.space names) in config.compare.algorithms", every, label)
  chosen = only(every, ONLY.value)
  spaces = {label: _space(config, label, variant) for label, variant in chosen.items()}
  points = {label: _points(space, trials) for label, space in spaces.items()}
  path = build.workdir(f"sweep-{config.model.name}-{config.data.name}")
  if not flags.RESUME.value:
    run_dir.RunFolder(path).check_unused()
  for label, variant in chosen.items():
    for number, values in enumerate(points[label]):
      _set(variant, values)
      build.check_folder(path / slug(label) / f"trial-{number}", variant, alone=False)
  data = configs.load(config)
  experiments = [_first(label, variant, points[label], data) for label, variant in chosen.items()]
  if flags.PROCESSES.value > 1 and hosts.processes() == 1:
    return build.launch(config.workers, path)
  compilation_cache.start()
  build.start_devices(config.workers)
  assert data.validation
  if hosts.is_main():
    run_dir.record(path, run_dir.about(["python", *sys.argv]), stored)
  evaluator = Evaluator(experiments[0].model, data.validation)
  results = {}
  for label, variant in chosen.items():
    build.say(f"{label}: {trials} trials of {', '.join(f'{k} in {v}' for k, v in spaces[label].items())}")
    tried = []
    for number, values in enumerate(points[label]):
      setting = _set(variant, values)
      try:
        score = _trial(variant, data, path / slug(label) / f"trial-{number}", evaluator, label)
      except train_loop.Stopped as stopped:
        build.say(f"stopped in {label}, trial {number}; {recorded.short('sweep', path)} goes on")
        return 128 + stopped.args[1]
      tried.append({"setting": setting, "validation": score})
      build.say(f"  {_words(values)}: {_words(score) if score else 'no result'}")
    good = [t for t in tried if t["validation"]]
    if not good:
      raise ValueError(f"{label}: no trial of {trials} gave a result; lower the bounds of config.sweep.learning_rate")
    best = max(good, key=lambda t: (t["validation"].get("accuracy", 0.0), -t["validation"]["loss"]))
    results[label] = {"best": best["setting"], "validation": best["validation"], "trials": tried}
  if hosts.is_main():
    about = run_dir.about(["python", *sys.argv])
    (path / run_dir.TUNED).write_text(json.dumps({"algorithms": results, "about": about}, indent=2) + "\n")
    for label, result in results.items():
      flat = {k: v for keys in result["best"].values() for k, v in keys.items()}
      print(f"{label:24} {_words(flat)}  ({_words(result['validation'])} on the validation split)")
    tuned = path / run_dir.TUNED
    print(f"{tuned}; use it with: python run.py compare --config=... --tuned={tuned}")
  return 0


def _space(config: Any, label: str, variant: Any) -> dict[str, tuple[float, float]]:
  """The bounds of what is tuned: the learning rate, and what config.sweep.space names for this label."""
  taken = keywords(named("algorithm", configs.ALGORITHMS, variant.algorithm.name).factory)
  space = {"learning_rate": _bounds("config.sweep.learning_rate", config.sweep.learning_rate, float)}
  if space["learning_rate"][0] <= 0:
    raise ValueError(f"config.sweep.learning_rate is {space['learning_rate']}; its bounds have to be positive")
  own = config.sweep.space.get(label, {})
  if not isinstance(own, Mapping | ConfigDict):
    raise ValueError(f"config.sweep.space['{label}'] is {own!r}; it maps keys to bounds, such as {{'period': (1, 16)}}")
  for key, bounds in own.items():
    where = f"config.sweep.space['{label}'].{key}"
    if key not in taken:
      known = f"it takes {', '.join(taken)}" if taken else "it takes no settings"
      raise ValueError(f"{where}: algorithm '{variant.algorithm.name}' does not read it; {known}")
    space[key] = _bounds(where, bounds, taken[key].annotation)
  return space


def _bounds(where: str, bounds: Any, annotation: Any) -> tuple[float, float]:
  """The pair low < high as numbers of the key's type.

  Raises:
    ValueError: for anything else.
  """
  if annotation not in (int, float):
    raise ValueError(f"{where} is tuned between two numbers, but it is no number: set it for the label instead")
  try:
    low, high = (as_type(bound, annotation) for bound in bounds)
  except (TypeError, ValueError) as error:
    raise ValueError(f"{where} is {bounds!r}; give two of type {annotation.__name__}, (low, high)") from error
  if not (low < high and math.isfinite(high - low)):
    raise ValueError(f"{where} is {(low, high)}; its bounds have to rise and be finite")
  return low, high


def _points(space: dict[str, tuple[float, float]], trials: int) -> list[dict[str, float]]:
  """The first points of a Halton sequence: evenly spread for any number, the same for every algorithm.

  Log scale where the bounds span a decade, else linear; integers where both bounds are, else four digits.
  """
  memory.require(trials * (8 * len(space) + sys.getsizeof({})), f"{trials} trials")
  sequence = qmc.Halton(len(space), scramble=False)
  sequence.fast_forward(1)  # the first point is the corner of the box
  points = []
  for row in sequence.random(trials):
    point = {}
    for u, (key, (low, high)) in zip(row, space.items(), strict=True):
      value = low * (high / low) ** u if low > 0 and high / low >= 10 else low + (high - low) * u
      whole = isinstance(low, int) and isinstance(high, int)
      point[key] = round(value) if whole else float(f"{value:.4g}")
    points.append(point)
  return points


def _trial(variant: Any, data: Any, path: Path, evaluator: Evaluator, label: str) -> dict[str, float] | None:
  """Loss and accuracy on the validation split after the last step; None where the run diverged or cannot be made."""
  try:
    experiment = configs.build(variant, data)
  except ValueError as error:
    build.say(f"  {error}")
    return None
  try:
    trainer = build.make_trainer(experiment, variant)
    files = run_dir.RunFolder(path, writes=hosts.is_main())
    resume = flags.RESUME.value and (path / run_dir.CONFIG).exists()
    if resume and (path / run_dir.RESULT).exists():
      files.reopen(experiment.resolved)
      last = run_dir.read_result(path)
    else:
      options = train_loop.Options(resume, keep_final=False, batch_stats=flags.BATCH_STATS.value, label=label)
      last = train_loop.run(experiment, trainer, files, evaluator, options, run_dir.about(["python", *sys.argv]))
  except train_loop.Diverged:
    return None
  score = {name: last[f"test_{name}"] for name in ("accuracy", "loss") if f"test_{name}" in last}
  return score if math.isfinite(score["loss"]) else None


def _first(label: str, variant: Any, points: list[dict[str, float]], data: Any) -> configs.Experiment:
  """The experiment of the first trial that can be made.

  Raises:
    ValueError: if none can: then the trials are not at fault, but the config.
  """
  wrong: list[ValueError] = []
  for values in points:
    changed = copy.deepcopy(variant)
    _set(changed, values)
    try:
      return configs.build(changed, data)
    except ValueError as error:
      wrong.append(error)
  raise ValueError(f"'{label}' cannot be made in any of {len(points)} trials: {wrong[0]}") from wrong[0]


def _set(variant: Any, values: dict[str, float]) -> dict[str, dict[str, float]]:
  """Puts a trial's values into the config; returns them by section."""
  setting = _setting(values)
  for section, keys in setting.items():
    for key, value in keys.items():
      variant[section][key] = value
  return setting


def _setting(values: dict[str, float]) -> dict[str, dict[str, float]]:
  rest = {k: v for k, v in values.items() if k != "learning_rate"}
  return {"optimizer": {"learning_rate": values["learning_rate"]}, **({"algorithm": rest} if rest else {})}


def _words(values: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" for k, v in values.items())
