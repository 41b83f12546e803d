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
from ddl.comparison import study
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.config.sweep import RATE, Point, Sweep, by_section, edges, points
from ddl.data import source
from ddl.engine.trainer import Trainer
from ddl.names import pluralize, slug
from ddl.run import build, inputs
from ddl.run import folder as run_dir
from ddl.run import loop as train_loop
from ddl.run.batch import Batch, Diverged, LoopStep, SeedRun
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.exit_codes import Stopped
from ddl.run.hooks import AfterEvaluation, TensorBoard
from ddl.run.metrics import Evaluation, Evaluator, Losses, judged_by
from ddl.run.processes import launch, launches, say
from ddl.run.session import open_folder, session
from ddl.run.workdir import resume_command

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
  path = open_folder("sweep", f"{first.model.short_name}-{first.data.short_name}", options)
  if not options.resume:
    run_dir.RunFolder(path).check_unused()
  logs = study.saved(path, chosen)
  begun = {file.parent for file in path.glob(f"*/trial-*/seed-*/{run_dir.CONFIG}")}  # before any process adds another
  tries = {label: points(space, chosen.trials) for label, space in chosen.spaces.items()}
  data = _load(chosen)
  firsts = {label: _first(label, each, tries[label], data) for label, each in chosen.experiments.items()}
  for each in firsts.values():
    build.check_options(each, options)
  if launches(options):
    launch(sweep, chosen, replace(options, workdir=str(path)), first.workers, path.exists)
    return files.read_json(path / run_dir.TUNED)["algorithms"]
  with session(path, options, first.workers) as started:
    experiments = chosen.experiments
    agreed = {label: chosen.to_json(label) for label in experiments}
    computed_from = started.agree(agreed, experiments.values(), data)
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
  say(f"{label}: {pluralize(chosen.trials, 'trial')} of {space}{there}")
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
    first = build.build(replace(experiment.changed(by_section(point)), seed=seeds[0]), data)
    runs = [first, *(build.reseeded(first, seed) for seed in seeds[1:])]
    build.check_options(first, options)
    trainer, clock = build.make_trainer(first, options)
  except ValueError as error:
    say(f"  {error}")
    return study.INVALID, []
  scores = []
  try:
    for components in runs:
      if components is not first:
        clock = build.follow(trainer, components.experiment)
      folder = run_dir.RunFolder(path / f"seed-{components.experiment.seed}", hosts.is_main(), inputs=computed_from)
      run = SeedRun(components, folder, clock, folder.path in begun)
      last = _run(run, trainer, evaluator, label, options, None if scores else judge)
      scores.append({name: last[f"test_{name}"] for name in METRICS if f"test_{name}" in last})
      if not math.isfinite(scores[-1]["loss"]):
        return study.DIVERGED, scores[:-1]
  except Diverged:
    return study.DIVERGED, scores
  except TrialPruned:
    return study.PRUNED, scores
  return study.COMPLETE, scores


class _Judge(AfterEvaluation):
  """A hook of the loop that shows each line of metrics to the study, which may prune the trial."""

  def __init__(self, judge: Lines):
    self._judge = judge

  def evaluated(self, state: LoopStep, run: int) -> None:
    self._judge(state.batch.figures[run]["last"])


def _run(
  run: SeedRun, trainer: Trainer, evaluator: Evaluator, label: str, options: RunOptions, judge: Lines | None
) -> dict[str, Any]:
  """Run one seed of a trial, or read the result of one that was complete before a resume."""
  if run.resume and (run.folder.path / run_dir.RESULT).exists():
    run.folder.reopen(run.components.experiment)
    return run_dir.read_result(run.folder.path)
  batch, store = Batch([run], trainer), RunCheckpoints(run.components.experiment.steps, final=False)
  hooks = [Losses(), Evaluation(batch, evaluator, options.batch_stats), TensorBoard()]
  hooks += [_Judge(judge)] if judge else []
  (outcome,) = train_loop.run(batch, store, hooks, label, run_dir.about(options.command))
  if isinstance(outcome, Diverged):
    raise outcome
  return outcome


def _load(chosen: Sweep) -> Data:
  """The data of all; where it sets no validation examples apart, the sweep does."""
  data = build.load(chosen.first)
  if data.validation is not None:
    return data
  train, validation = source.split(data.train, chosen.validation)
  return data._replace(train=train, validation=validation)


def _first(label: str, experiment: Experiment, tries: list[Point], data: Data) -> build.Components:
  """The first trial that can be build.

  Raises:
    ValueError: if none can: then the trials are not at fault, but the config.
  """
  wrong: list[ValueError] = []
  for point in tries:
    try:
      return build.build(experiment.changed(by_section(point)), data)
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
