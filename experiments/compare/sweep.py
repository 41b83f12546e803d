"""Tunes each algorithm with the same number of trials on a validation split, as an ordinary function."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddl.api import Data
from ddl.runtime import hosts
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.config.sweep import Sweep, by_section, points
from experiments.config.variants import slug
from experiments.train import build as made
from experiments.train import compilation_cache, run_dir, train_loop
from experiments.train.compiled import CompiledRun
from experiments.train.evaluate import Evaluator
from experiments.train.exit_codes import Stopped
from experiments.train.processes import launch, say, start_devices
from experiments.train.workdir import check_folder, resume_command, workdir


def sweep(chosen: Sweep, options: RunOptions | None = None) -> dict[str, Any]:
  """Runs the trials; returns and writes to tuned.json {label: {"best": setting, "validation": score, "trials": all}}.

  Raises:
    Stopped: after SIGTERM or Ctrl-C; what was run is saved.
    Failed: if one of several processes did.
    ValueError: for an invalid folder, options or sweep, or a label of which no trial gave a result.
  """
  options, first = options or RunOptions(), chosen.first
  tries = {label: points(space, chosen.trials) for label, space in chosen.spaces.items()}
  path = workdir(f"sweep-{first.model.name}-{first.data.name}", options)
  if not options.resume:
    run_dir.RunFolder(path).check_unused()
  for label, experiment in chosen.experiments.items():
    for number, point in enumerate(tries[label]):
      changed = experiment.changed(by_section(point))
      check_folder(path / slug(label) / f"trial-{number}", changed, options, alone=False)
  data = made.load(first)
  firsts = {label: _first(label, each, tries[label], data) for label, each in chosen.experiments.items()}
  if options.processes > 1 and hosts.processes() == 1:
    launch(sweep, chosen, replace(options, workdir=str(path)), first.workers)
    return run_dir.read_json(path / run_dir.TUNED)["algorithms"]
  compilation_cache.start(options.compilation_cache)
  start_devices(first.workers, options)
  assert data.validation
  if hosts.is_main():
    run_dir.record(path, run_dir.about(options.command), options.recorded)
  evaluator, results = Evaluator(next(iter(firsts.values())).model, data.validation), {}
  for label, experiment in chosen.experiments.items():
    space = ", ".join(f"{k} in {v}" for k, v in chosen.spaces[label].items())
    say(f"{label}: {chosen.trials} trials of {space}")
    tried = []
    for number, point in enumerate(tries[label]):
      try:
        score = _trial(experiment, point, data, path / slug(label) / f"trial-{number}", evaluator, label, options)
      except Stopped as stopped:
        stopped.message = f"stopped in {label}, trial {number}; resume with: {resume_command('sweep', path)}"
        raise
      tried.append({"setting": by_section(point), "validation": score})
      say(f"  {_words(point)}: {_words(score) if score else 'no result'}")
    good = [t for t in tried if t["validation"]]
    if not good:
      raise ValueError(
        f"{label}: no trial of {chosen.trials} gave a result; lower the bounds of config.sweep.learning_rate"
      )
    best = max(good, key=lambda t: (t["validation"].get("accuracy", 0.0), -t["validation"]["loss"]))
    results[label] = {"best": best["setting"], "validation": best["validation"], "trials": tried}
  if hosts.is_main():
    _write(path / run_dir.TUNED, results, options)
  return results


def _trial(
  experiment: Experiment, point: Mapping[str, float], data: Data, path: Path, evaluator: Evaluator, label: str,
  options: RunOptions,
) -> dict[str, float] | None:  # fmt: skip
  """Loss and accuracy on the validation split after the last step; None for divergence or invalid settings."""
  try:
    components = made.build(experiment.changed(by_section(point)), data)
  except ValueError as error:
    say(f"  {error}")
    return None
  try:
    trainer = made.make_trainer(components, options)
    files = run_dir.RunFolder(path, writes=hosts.is_main())
    resume = options.resume and (path / run_dir.CONFIG).exists()
    if resume and (path / run_dir.RESULT).exists():
      files.reopen(components.experiment)
      last = run_dir.read_result(path)
    else:
      runner = CompiledRun(components, trainer, keep_final=False)
      loop = train_loop.Options(resume, options.batch_stats, label)
      last = train_loop.run(components, runner, files, evaluator, loop, run_dir.about(options.command))
  except train_loop.Diverged:
    return None
  score = {name: last[f"test_{name}"] for name in ("accuracy", "loss") if f"test_{name}" in last}
  return score if math.isfinite(score["loss"]) else None


def _first(label: str, experiment: Experiment, tries: list[dict[str, float]], data: Data) -> made.Components:
  """The first trial that can be made.

  Raises:
    ValueError: if none can: then the trials are not at fault, but the config.
  """
  wrong: list[ValueError] = []
  for point in tries:
    try:
      return made.build(experiment.changed(by_section(point)), data)
    except ValueError as error:
      wrong.append(error)
  raise ValueError(f"'{label}' is invalid in each of {len(tries)} trials: {wrong[0]}") from wrong[0]


def _write(file: Path, results: dict[str, Any], options: RunOptions) -> None:
  content = {"algorithms": results, "about": run_dir.about(options.command)}
  file.write_text(json.dumps(content, indent=2) + "\n")
  for label, result in results.items():
    flat = {k: v for keys in result["best"].values() for k, v in keys.items()}
    say(f"{label:24} {_words(flat)}  ({_words(result['validation'])} on the validation split)")
  say(f"{file}; use it with: python run.py compare --config=... --tuned={file}")


def _words(values: Mapping[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" for k, v in values.items())
