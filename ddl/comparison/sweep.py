"""Tune each algorithm at each grid point, with equal numbers of trials, on a validation split."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from optuna import TrialPruned

from ddl import files, hosts
from ddl.api import Data
from ddl.comparison import study
from ddl.comparison.label_runs import LabelRuns, existing_runs
from ddl.config import tuned as tuned_settings
from ddl.config.experiment import Experiment, jsonable
from ddl.config.options import RunOptions
from ddl.config.sweep import RATE, Point, Sweep, by_section, edges, points
from ddl.data import source
from ddl.names import pluralize, slug
from ddl.report.reader import TEST, is_score
from ddl.run import build, inputs
from ddl.run import folder as run_dir
from ddl.run.batch import Diverged, LoopStep
from ddl.run.hooks import AfterEvaluation
from ddl.run.metrics import Evaluator, comparison_metric
from ddl.run.processes import check_processes, launch, launches, say
from ddl.run.session import open_folder, session

Trial = tuple[Any, Point]  # an Optuna trial and its settings


def sweep(settings: Sweep, options: RunOptions | None = None) -> dict[str, Any]:
  """Run the trials of a sweep; return the result of each algorithm label, and write the results to tuned.json.

  A result has "group" (the label without grid values), "point" (the grid values), "settings" (see `ddl.config.tuned`),
  "best" (the best setting), "validation" (its score), "edges" ({key: "low" or "high"} if the best value is the smallest
  or largest one tried) and "trials" (each with "setting", "outcome", "validation" and the scores of its "seeds").

  Raises:
    Stopped: after SIGTERM or Ctrl-C; all progress is saved.
    Failed: if one of several processes failed.
    ValueError: for an invalid folder, options or sweep, or if no trial of a label completed.
  """
  options, first = options or RunOptions(), settings.first
  path = open_folder("sweep", f"{first.model.short_name}-{first.data.short_name}", options)
  if not options.resume:
    run_dir.RunFolder(path).check_unused()
  logs = study.saved(path, settings)
  existing = existing_runs(path, "*/trial-*/seed-*", {})
  label_points = {label: points(space, settings.trials) for label, space in settings.spaces.items()}
  workers = {experiment.workers for experiment in settings.experiments.values()}
  for count in workers:
    check_processes(count, max(options.processes, hosts.processes()), options)
  data = _load(settings)
  first_components = {
    label: _first(label, experiment, label_points[label], data) for label, experiment in settings.experiments.items()
  }
  for components in first_components.values():
    build.check_options(components, options)
  if launches(options):
    launch(sweep, settings, replace(options, workdir=str(path)), max(workers), path.exists)
    return files.read_json(path / run_dir.TUNED)["algorithms"]
  with session(path, options, max(workers)) as started:
    experiments = settings.experiments
    agreed = {label: settings.to_json(label) for label in experiments}
    all_fingerprints = started.agree(agreed, experiments.values(), data)
    assert data.validation
    if hosts.is_main():
      run_dir.record(path, run_dir.about(options.command), options.recorded, all_fingerprints, existing.done(path))
    model = next(iter(first_components.values())).model
    metric = comparison_metric(settings.metric, settings.mode, model, {"": data.validation}, data.meta.get("task", ""))
    if metric.name == "perplexity":  # equivalent, as the loss is the log of the perplexity
      metric = metric._replace(name="loss")
    storage, evaluator, results = study.storage(path, logs, hosts.is_main()), Evaluator(model, data.validation), {}
    for label, components in first_components.items():
      fingerprints = inputs.fingerprints_of_label(all_fingerprints, components.experiment)
      max_runs = len(settings.seeds) or 1
      first_trial = LabelRuns(
        "sweep", path, label, components, existing, evaluator, started.options, fingerprints, max_runs
      )
      results[label] = _LabelSweep(settings, study.LabelStudy(storage, settings, label, metric), first_trial).run()
    tuned = {label: result for label, result in results.items() if result["best"]}
    if tuned and hosts.is_main():
      _write(path / run_dir.TUNED, tuned, options)
    for label in tuned:
      _warn(settings, label, tuned[label])
    for label in results.keys() - tuned.keys():
      text = f"{label}: none of {pluralize(settings.trials, 'trial')} completed"
      raise ValueError(f"{text}. If they diverged, lower the bounds of config.sweep.learning_rate.")
    return results


class _LabelSweep:
  """The trials of one algorithm label; trials that differ only in traced settings share a compiled program."""

  def __init__(self, settings: Sweep, trials: study.LabelStudy, first_trial: LabelRuns):
    """Create the label's sweep. first_trial: the runs of its first valid trial, from which all trials are made."""
    self._sweep, self._study, self._first_trial = settings, trials, first_trial
    self._experiment = settings.experiments[first_trial.label]
    self._one_by_one = settings.pruning or settings.sampler == "tpe"  # each trial depends on earlier results

  def run(self) -> dict[str, Any]:
    """Run the unfinished trials; return the label's entry of tuned.json."""
    sweep, label, finished = self._sweep, self._first_trial.label, len(self._study.finished())
    text = ", ".join(f"{key} in {bounds}" for key, bounds in sweep.spaces[label].items())
    complete = f", {finished} of which are complete" if finished else ""
    say(f"{label}: {pluralize(sweep.trials, 'trial')} of {text}{complete}")
    programs: dict[tuple[Any, ...], LabelRuns] = {}
    while pending := self._study.pending(1 if self._one_by_one else sweep.trials):
      trials: dict[tuple[Any, ...], list[Trial]] = {}
      for trial, point in pending:
        try:
          components = self._components(point)
        except ValueError as error:
          self._tell_invalid([(trial, point)], error)
          continue
        traced = build.traced_settings(components, point)
        structure = tuple((path, value) for path, value in point.items() if path not in traced)
        if structure not in programs:
          programs[structure] = self._program(components, traced)
        trials.setdefault(structure, []).append((trial, point))
      for structure, group in trials.items():
        self._run_trials(programs[structure], group)
        if not self._one_by_one:
          del programs[structure]  # frees its trainer
    return _result(self._study, sweep, label)

  def _components(self, point: Point) -> build.Components:
    """Build and check the components of a trial. Raises ValueError for invalid settings."""
    components = build.build(self._experiment_of(point), self._first_trial.components.data)
    build.check_options(components, self._first_trial.options)
    return components

  def _experiment_of(self, point: Point) -> Experiment:
    return self._experiment.changed(by_section(point))

  def _program(self, components: build.Components, traced: Sequence[str]) -> LabelRuns:
    """Return the `LabelRuns` for all trials that differ from `components` only in the traced settings."""
    one_by_one = self._sweep.pruning or components.experiment.in_virtual_time
    trials = self._sweep.trials if traced and not self._one_by_one else 1
    max_runs = 1 if one_by_one else trials * self._first_trial.max_runs
    return replace(self._first_trial, components=components, max_runs=max_runs, traced=traced)

  def _run_trials(self, program: LabelRuns, trials: Sequence[Trial]) -> None:
    """Run trials that share a program, and report their outcomes to the study."""
    try:
      program.trainer  # noqa: B018, built on first access, which may raise
    except ValueError as error:
      self._tell_invalid(trials, error)
      return
    seeds = self._sweep.seeds or (self._experiment.seed,)
    runs = [(trial, point, seed) for trial, point in trials for seed in seeds]
    experiments = {self._folder(trial, seed): replace(self._experiment_of(point), seed=seed)
                   for trial, point, seed in runs}  # fmt: skip
    judges = [_Judge(self._study, trials[0][0], seeds[0])] if self._sweep.pruning else []
    try:
      outcomes = {folder: outcome for folder, outcome, _ in program.outcomes(experiments, judges)}
    except TrialPruned:
      self._study.tell(trials[0][0], study.PRUNED, None, [])
      say(f"  {_words(trials[0][1])}: {study.PRUNED}")
      return
    for trial, point in trials:
      scores = list(takewhile(bool, (_score(outcomes[self._folder(trial, seed)]) for seed in seeds)))
      complete = len(scores) == len(seeds)
      mean = {name: fmean(score[name] for score in scores) for name in scores[0]} if complete else None
      outcome = study.COMPLETE if complete else study.DIVERGED
      self._study.tell(trial, outcome, mean, scores)
      say(f"  {_words(point)}: {_words(mean) if mean else outcome}")

  def _folder(self, trial: Any, seed: int) -> Path:
    return self._first_trial.path / slug(self._first_trial.label) / f"trial-{trial.number}" / f"seed-{seed}"

  def _tell_invalid(self, trials: Sequence[Trial], error: ValueError) -> None:
    say(f"  {error}")
    for trial, point in trials:
      self._study.tell(trial, study.INVALID, None, [])
      say(f"  {_words(point)}: {study.INVALID}")


class _Judge(AfterEvaluation):
  """A hook that reports each line of metrics of one seed to the study, which may prune the trial."""

  def __init__(self, trials: study.LabelStudy, trial: Any, seed: int):
    self._study, self._trial, self._seed = trials, trial, seed

  def evaluated(self, state: LoopStep, run: int) -> None:
    experiment = state.batch.runs[run].components.experiment
    if experiment.seed == self._seed:
      self._study.judge(self._trial, state.batch.figures[run]["last"], experiment.steps)


def _score(outcome: dict[str, Any] | Diverged) -> dict[str, float]:
  """Return a run's metrics on the validation split after the last step; {} if it diverged."""
  if isinstance(outcome, Diverged) or not math.isfinite(outcome["test_loss"]):
    return {}
  return {name.removeprefix(TEST): value for name, value in outcome.items() if is_score(name)}


def _load(sweep: Sweep) -> Data:
  """Load the data set of all algorithms; if it has no validation split, split off part of the training set."""
  data = build.load(sweep.first)
  if data.validation is not None:
    return data
  train, validation = source.split(data.train, sweep.validation)
  return data._replace(train=train, validation=validation)


def _first(label: str, experiment: Experiment, tested: list[Point], data: Data) -> build.Components:
  """Build the components of the first valid trial. Raises ValueError if no trial is valid."""
  wrong: list[ValueError] = []
  for point in tested:
    try:
      return build.build(experiment.changed(by_section(point)), data)
    except ValueError as error:
      wrong.append(error)
  raise ValueError(f"'{label}' is invalid in every trial: {wrong[0]}") from wrong[0]


def _result(trials: study.LabelStudy, sweep: Sweep, label: str) -> dict[str, Any]:
  """Return a label's entry of tuned.json; "best" is None if no trial completed."""
  finished = trials.finished()
  good = [(point, result["score"]) for point, result in finished if result["score"]]
  entries = [{"setting": by_section(point), "outcome": result["outcome"], "validation": result["score"],
              "seeds": result["seeds"]} for point, result in finished]  # fmt: skip
  place, experiment, space = sweep.places[label], sweep.experiments[label], sweep.spaces[label]
  settings = tuned_settings.settings_of(experiment, space)
  head = {"group": place.group, "point": jsonable(place.point), "settings": settings}
  if not good:
    return head | {"best": None, "validation": None, "edges": {}, "trials": entries}

  def quality(trial: tuple[Point, dict[str, float]]) -> tuple[float, float]:
    score, name = trial[1], trials.metric.name
    return score[name] if trials.metric.higher_is_better else -score[name], -score["loss"]

  best, score = max(good, key=quality)
  extremes = edges(experiment, space, best, [point for point, _ in finished])
  return head | {"best": by_section(best), "validation": score, "edges": extremes, "trials": entries}


def _warn(sweep: Sweep, label: str, result: Mapping[str, Any]) -> None:
  """Warn if the best value of a key is the smallest or largest one tried."""
  for path, side in result["edges"].items():
    section, _, key = path.partition(".")
    inner, group = path if section == "optimizer" else key, sweep.places[label].group
    where = "config.sweep.learning_rate" if path == RATE else f"config.sweep.space['{group}'].{inner}"
    bounds = sweep.spaces[label][path]
    extreme, change = ("smallest", "lower") if side == "low" else ("largest", "higher")
    best = f"{label}: the best {key}, {result['best'][section][key]:.4g}, is the {extreme} value tried"
    advice = f"raise config.sweep.trials, or extend {where}={bounds} to {change} values"
    warnings.warn(f"{best}; {advice}", stacklevel=2)


def _write(file: Path, results: dict[str, Any], options: RunOptions) -> None:
  others = files.read_json(file)["algorithms"] if file.exists() else {}  # labels that --only leaves out
  content = {"algorithms": others | results, "about": run_dir.about(options.command)}
  file.write_text(json.dumps(content, indent=2) + "\n")
  for label, result in results.items():
    flat = {k: v for keys in result["best"].values() for k, v in keys.items()}
    say(f"{label:24} {_words(flat)}  ({_words(result['validation'])} on the validation split)")
  say(f"{file}; use it with: python run.py compare --config=... --tuned={file}")


def _words(values: Mapping[str, Any]) -> str:
  return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
