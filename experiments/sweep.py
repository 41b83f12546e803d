"""`python run.py sweep`: tunes each algorithm with the same number of trials, on a validation split."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from scipy.stats import qmc

from ddl.runtime import hosts
from experiments import config as configs
from experiments import flags, folder, session, setup
from experiments.compare import ONLY
from experiments.evaluate import Evaluator
from experiments.variants import only, slug, variants

TRIALS = absl_flags.DEFINE_integer("trials", 0, "trials per algorithm; 0: config.sweep.trials", lower_bound=0)


def main(config: Any) -> int:
  """Runs the sweep; returns the exit code."""
  if config.data.validation is None:
    config.data.validation = config.sweep.validation
  if not config.data.validation:
    raise ValueError("a sweep needs a validation split; set config.sweep.validation, e.g. to 0.2")
  trials = TRIALS.value or config.sweep.trials
  chosen, data = only(variants(config), ONLY.value), configs.load(config)
  spaces = {label: _space(config, label, variant) for label, variant in chosen.items()}
  path = setup.workdir(f"sweep-{config.model.name}-{config.data.name}")
  if flags.PROCESSES.value > 1 and hosts.processes() == 1:
    return setup.launch(config.workers, path)
  setup.start_devices(config.workers)
  assert data.validation
  evaluator = Evaluator(configs.build(next(iter(chosen.values())), data).model, data.validation)
  results = {}
  for label, variant in chosen.items():
    setup.say(f"{label}: {trials} trials of {', '.join(f'{k} in {v}' for k, v in spaces[label].items())}")
    tried = []
    for number, values in enumerate(_points(spaces[label], trials)):
      setting = _setting(values)
      for section, keys in setting.items():
        for key, value in keys.items():
          variant[section][key] = value
      try:
        score = _trial(variant, data, path / slug(label) / f"trial-{number}", evaluator, label)
      except session.Stopped as stopped:
        setup.say(f"stopped in {label}, trial {number}; --resume --workdir={path} goes on")
        return 128 + stopped.args[1]
      tried.append({"setting": setting, "validation": score})
      setup.say(f"  {_words(values)}: {_words(score) if score else 'no result'}")
    good = [t for t in tried if t["validation"]]
    if not good:
      raise ValueError(f"{label}: no trial of {trials} gave a result; lower the bounds of config.sweep.learning_rate")
    best = max(good, key=lambda t: (t["validation"].get("accuracy", 0.0), -t["validation"]["loss"]))
    results[label] = {"best": best["setting"], "validation": best["validation"], "trials": tried}
  if hosts.is_main():
    about = folder.about(["python", *sys.argv])
    (path / "tuned.json").write_text(json.dumps({"algorithms": results, "about": about}, indent=2) + "\n")
    for label, result in results.items():
      flat = {k: v for keys in result["best"].values() for k, v in keys.items()}
      print(f"{label:24} {_words(flat)}  ({_words(result['validation'])} on the validation split)")
    print(f"{path}/tuned.json; use it with: python run.py compare --config=... --tuned={path}/tuned.json")
  return 0


def _space(config: Any, label: str, variant: Any) -> dict[str, tuple[float, float]]:
  """The bounds of what is tuned: the learning rate, and what config.sweep.space names for this label."""
  space = {"learning_rate": tuple(config.sweep.learning_rate)}
  for key, bounds in config.sweep.space.get(label, {}).items():
    if key not in variant.algorithm:
      raise ValueError(f"config.sweep.space['{label}'].{key}: the algorithm has no such hyper-parameter")
    space[key] = tuple(bounds)
  for key, (low, high) in space.items():
    if not low < high or (key == "learning_rate" and low <= 0):
      raise ValueError(
        f"config.sweep: the bounds {(low, high)} of {key} for '{label}' have to rise (from above 0 for a rate)"
      )
  return space


def _points(space: dict[str, tuple[float, float]], trials: int) -> list[dict[str, float]]:
  """The first points of a Halton sequence: evenly spread for any number, the same for every algorithm.

  Log scale where the bounds span a decade, else linear; integers where both bounds are.
  """
  sequence = qmc.Halton(len(space), scramble=False)
  sequence.fast_forward(1)  # the first point is the corner of the box
  points = []
  for row in sequence.random(trials):
    point = {}
    for u, (key, (low, high)) in zip(row, space.items(), strict=True):
      value = low * (high / low) ** u if low > 0 and high / low >= 10 else low + (high - low) * u
      whole = isinstance(low, int) and isinstance(high, int)
      point[key] = round(value) if whole else float(f"{value:.{3 - math.floor(math.log10(value or 1))}f}")
    points.append(point)
  return points


def _trial(variant: Any, data: Any, path: Path, evaluator: Evaluator, label: str) -> dict[str, float] | None:
  """Loss and accuracy on the validation split after the last step; None where the run diverged or cannot be made."""
  try:
    experiment = configs.build(variant, data)
    trainer = setup.make_trainer(experiment, variant)
    files = folder.RunFolder(path, writes=hosts.is_main())
    resume = flags.RESUME.value and (path / folder.CONFIG).exists()
    if resume and (path / folder.RESULT).exists():
      files.reopen(experiment.resolved)
      last = json.loads((path / folder.RESULT).read_text())
    else:
      options = session.Options(resume, keep_final=False, batch_stats=flags.BATCH_STATS.value, label=label)
      last = session.run(experiment, trainer, files, evaluator, options, folder.about(["python", *sys.argv]))
  except session.Diverged:
    return None
  score = {name: last[f"test_{name}"] for name in ("accuracy", "loss") if f"test_{name}" in last}
  return score if math.isfinite(score["loss"]) else None


def _setting(values: dict[str, float]) -> dict[str, dict[str, float]]:
  rest = {k: v for k, v in values.items() if k != "learning_rate"}
  return {"optimiser": {"learning_rate": values["learning_rate"]}, **({"algorithm": rest} if rest else {})}


def _words(values: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" for k, v in values.items())
