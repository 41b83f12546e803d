"""Tunes each algorithm with the same number of trials on a validation split, as an ordinary function."""

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from optuna import TrialPruned

from ddl import files, hosts
from ddl.api import Data
from ddl.asynchronous.simulator import Simulator
from ddl.comparison import study
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions, check_read
from ddl.config.sweep import RATE, Point, Sweep, by_section, edges, points
from ddl.data import source
from ddl.names import slug
from ddl.perf.units import counted
from ddl.run import build as made
from ddl.run import compilation_cache, inputs, processes, trainers
from ddl.run import folder as run_dir
from ddl.run import loop as train_loop
from ddl.run.compiled import CompiledRun
from ddl.run.exit_codes import Stopped, resumable
from ddl.run.metrics import Evaluator, judged_by
from ddl.run.processes import launch, launches, say, start_devices
from ddl.run.workdir import resume_command, workdir

METRICS = ("accuracy", "loss", "perplexity")
Lines = Callable[[dict[str, Any]], None]  # is told each line of metrics, and may raise TrialPruned


def sweep(chosen: Sweep, options: RunOptions | None = None) -> dict[str, Any]:
  """Run the trials; return and write to tuned.json what each label found.

  By label: "best" (the setting), "validation" (its score), "edges" ({key: "low" or "high"}, where the best value is the
  smallest or the largest of those tried) and "trials" (each with "setting", "outcome", "validation" and the scores of
  its "seeds").

  Raises:
    Stopped: after SIGTERM or Ctrl-C; what was run is saved.
    Failed: if one of several processes did.
    ValueError: for an invalid folder, options or sweep, or a label of which no trial gave a result.
  """
  options, first = options or RunOptions(), chosen.first
  check_read("sweep", options)
  path = workdir(f"sweep-{first.model.short_name}-{first.data.short_name}", options)
  resumable(resume_command("sweep", path, options.command))
  if not options.resume:
    run_dir.RunFolder(path).check_unused()
  logs = study.saved(path, chosen)
  begun = {file.parent for file in path.glob(f"*/trial-*/seed-*/{run_dir.CONFIG}")}  # before any process adds another
  tries = {label: points(space, chosen.trials) for label, space in chosen.spaces.items()}
  data = _load(chosen)
  firsts = {label: _first(label, each, tries[label], data) for label, each in chosen.experiments.items()}
  for each in firsts.values():
    trainers.check_members(each, options)
  if launches(options):
    launch(sweep, chosen, replace(options, workdir=str(path)), first.workers, path.exists)
    return files.read_json(path / run_dir.TUNED)["algorithms"]
  compilation_cache.start(options.compilation_cache)
  start_devices(first.workers, options)
  computed_from = inputs.of(chosen.experiments.values(), data)
  processes.check({label: chosen.to_json(label) for label in chosen.experiments}, options, data, computed_from)
  if options.resume:
    inputs.check(path, computed_from, options.allow_changed_inputs)
  assert data.validation
  if hosts.is_main():
    complete = sorted(run for run in begun if (run / run_dir.RESULT).exists())
    done = {"runs": dict.fromkeys(str(run.relative_to(path)) for run in complete)}
    run_dir.record(path, run_dir.about(options.command), options.recorded, computed_from, done)
  model = next(iter(firsts.values())).model
  metric = judged_by(chosen.metric, model, data.validation, data.meta.get("task", ""))
  metric = "loss" if metric == "perplexity" else metric  # the one is the other's logarithm
  storage, evaluator, results = study.storage(path, logs, hosts.is_main()), Evaluator(model, data.validation), {}
  for label in chosen.experiments:
    trials = study.LabelStudy(storage, chosen, label, metric)
    mine = inputs.of_label(computed_from, chosen.experiments[label])
    _tune(trials, chosen, label, data, path, begun, evaluator, options, mine)
    results[label] = _result(trials, chosen, label, metric)
  good = {label: each for label, each in results.items() if each["best"]}
  if good and hosts.is_main():
    _write(path / run_dir.TUNED, good, options)
  for label in good:
    _warn(chosen, label, good[label])
  for label in results.keys() - good.keys():
    raise ValueError(
      f"{label}: no trial of {chosen.trials} gave a result; lower the bounds of config.sweep.learning_rate"
    )
  return results


def _tune(
  trials: study.LabelStudy, chosen: Sweep, label: str, data: Data, path: Path, begun: set[Path],
  evaluator: Evaluator, options: RunOptions, computed_from: Mapping[str, str],
) -> None:  # fmt: skip
  """The trials of a label that are not finished yet."""
  experiment = chosen.experiments[label]
  there = f", {count} of which are there" if (count := len(trials.finished())) else ""
  space = ", ".join(f"{k} in {v}" for k, v in chosen.spaces[label].items())
  say(f"{label}: {counted(chosen.trials, 'trial')} of {space}{there}")
  while (found := trials.next()) is not None:
    trial, point = found

    def judge(line: dict[str, Any], trial: Any = trial) -> None:
      if chosen.pruning:
        trials.judge(trial, line, experiment.steps)

    folder = path / slug(label) / f"trial-{trial.number}"
    try:
      outcome, scores = _trial(
        experiment,
        point,
        chosen.seeds or (experiment.seed,),
        data,
        folder,
        begun,
        evaluator,
        label,
        options,
        computed_from,
        judge,
      )
    except Stopped as stopped:
      stopped.message = f"stopped in {label}, trial {trial.number}; resume with: {resume_command('sweep', path)}"
      raise
    complete = outcome == study.COMPLETE
    score = {name: fmean(each[name] for each in scores) for name in scores[0]} if complete else None
    trials.tell(trial, outcome, score, scores)
    say(f"  {_words(point)}: {_words(score) if score else outcome}")


def _trial(
  experiment: Experiment, point: Point, seeds: tuple[int, ...], data: Data, path: Path,
  begun: set[Path], evaluator: Evaluator, label: str, options: RunOptions, computed_from: Mapping[str, str],
  judge: Lines,
) -> tuple[str, list[dict[str, float]]]:  # fmt: skip
  """The outcome, and the metrics on the validation split after the last step of each seed that was run.

  The first seed alone is judged on the way.
  """
  try:
    first = made.build(replace(experiment.changed(by_section(point)), seed=seeds[0]), data)
    runs = [first, *(made.reseeded(first, seed) for seed in seeds[1:])]
    trainers.check_members(first, options)
    trainer = trainers.make_trainer(runs[0], options)
  except ValueError as error:
    say(f"  {error}")
    return study.INVALID, []
  scores = []
  try:
    for components in runs:
      if components is not runs[0] and isinstance(trainer, Simulator):
        trainers.follow(trainer, components.experiment)
      files = _Told(path / f"seed-{components.experiment.seed}", computed_from, None if scores else judge)
      last = _run(components, trainer, files, files.path in begun, evaluator, label, options)
      scores.append({name: last[f"test_{name}"] for name in METRICS if f"test_{name}" in last})
      if not math.isfinite(scores[-1]["loss"]):
        return study.DIVERGED, scores[:-1]
  except train_loop.Diverged:
    return study.DIVERGED, scores
  except TrialPruned:
    return study.PRUNED, scores
  return study.COMPLETE, scores


class _Told(run_dir.RunFolder):
  """A run's folder that tells its lines of metrics to someone else too."""

  def __init__(self, path: Path, computed_from: Mapping[str, str], tell: Lines | None):
    super().__init__(path, writes=hosts.is_main(), inputs=computed_from)
    self._tell = tell

  def line(self, figures: dict[str, Any]) -> None:
    super().line(figures)
    if self._tell:
      self._tell(figures)


def _run(
  components: made.Components, trainer: Any, files: run_dir.RunFolder, resume: bool,
  evaluator: Evaluator, label: str, options: RunOptions,
) -> dict[str, Any]:  # fmt: skip
  """One run, or what it left if it was complete before a resume."""
  if resume and (files.path / run_dir.RESULT).exists():
    files.reopen(components.experiment)
    return run_dir.read_result(files.path)
  runner = CompiledRun([components], trainer, keep_final=False)
  loop, about = train_loop.Options(options.batch_stats, label), run_dir.about(options.command)
  return train_loop.run(train_loop.Part(components, files, resume=resume), runner, evaluator, loop, about)


def _load(chosen: Sweep) -> Data:
  """The data of all; where it sets no validation examples apart, the sweep does."""
  data = made.load(chosen.first)
  if data.validation is not None:
    return data
  train, validation = source.split(data.train, chosen.validation)
  return data._replace(train=train, validation=validation)


def _first(label: str, experiment: Experiment, tries: list[Point], data: Data) -> made.Components:
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


def _result(trials: study.LabelStudy, chosen: Sweep, label: str, metric: str) -> dict[str, Any]:
  """A label's entry of tuned.json; "best" is None if no trial gave a result."""
  found = trials.finished()
  good = [(point, told["score"]) for point, told in found if told["score"]]

  def quality(trial: tuple[Point, dict[str, float]]) -> tuple[float, float]:
    return (trial[1]["accuracy"] if metric == "accuracy" else 0.0), -trial[1]["loss"]

  point, score = max(good, key=quality, default=({}, None))
  return {
    "best": by_section(point) if good else None,
    "validation": score,
    "edges": edges(chosen.experiments[label], chosen.spaces[label], point, [at for at, _ in found]) if good else {},
    "trials": [
      {"setting": by_section(at), "outcome": told["outcome"], "validation": told["score"], "seeds": told["seeds"]}
      for at, told in found
    ],
  }


def _warn(chosen: Sweep, label: str, result: Mapping[str, Any]) -> None:
  """Warn of each key whose best value is the smallest or the largest of those tried."""
  for path, side in result["edges"].items():
    section, _, key = path.partition(".")
    inner = f"optimizer.{key}" if section == "optimizer" else key
    where = "config.sweep.learning_rate" if path == RATE else f"config.sweep.space['{label}'].{inner}"
    bounds = chosen.spaces[label][path]
    extreme, change = ("smallest", "lower") if side == "low" else ("largest", "higher")
    warnings.warn(
      f"{label}: the best {key}, {result['best'][section][key]:.4g}, is the {extreme} of those tried; "
      f"try {change} ones too: {where} is {bounds}",
      stacklevel=2,
    )


def _write(file: Path, results: dict[str, Any], options: RunOptions) -> None:
  content = {"algorithms": results, "about": run_dir.about(options.command)}
  file.write_text(json.dumps(content, indent=2) + "\n")
  for label, result in results.items():
    flat = {k: v for keys in result["best"].values() for k, v in keys.items()}
    say(f"{label:24} {_words(flat)}  ({_words(result['validation'])} on the validation split)")
  say(f"{file}; use it with: python run.py compare --config=... --tuned={file}")


def _words(values: Mapping[str, Any]) -> str:
  return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
