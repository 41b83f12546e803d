"""The runs of a comparison: the seeds of each label, together where that is faster."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files, hosts
from ddl.config.comparison import Comparison
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.engine import execution
from ddl.engine.trainer import Trainer
from ddl.engine.workers import make_workers
from ddl.names import pluralize, slug
from ddl.report.reader import SCORES
from ddl.run import build, checkpoints, inputs
from ddl.run import folder as run_dir
from ddl.run import loop as train_loop
from ddl.run.batch import Batch, Diverged, SeedRun
from ddl.run.build import Components, compared_in_virtual_time
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.exit_codes import Stopped
from ddl.run.folder import RunFolder
from ddl.run.hooks import SaveModels, TensorBoard, UserHooks
from ddl.run.metrics import Evaluation, Evaluator, Losses
from ddl.run.processes import say
from ddl.run.virtual_time import RunClock
from ddl.run.workdir import resume_command

GROUPS = "together.json"  # the seeds of a label that are made together, in the order of their lanes


class There(NamedTuple):
  """Folders of runs that an earlier comparison left."""

  complete: set[Path]
  saved: dict[Path, int]  # the step of the last checkpoint of those that were not ended, -1 without one
  read: Mapping[str, Sequence[str]]  # the runs of labels that are not asked for, which are read as they are

  def done(self, path: Path) -> dict[str, Any]:
    """Return the last step of each run, None for a complete one, by its folder in that of the comparison."""
    steps = dict.fromkeys(self.complete) | {run: step for run, step in self.saved.items() if step >= 0}
    return {"runs": {str(run.relative_to(path)): steps[run] for run in sorted(steps)}}


def there(path: Path, read: Mapping[str, Sequence[str]]) -> There:
  """Look once, before any of several processes adds another."""
  begun, result, failed = (
    {file.parent for file in path.glob(f"*/seed-*/{name}")} for name in (run_dir.CONFIG, run_dir.RESULT, run_dir.FAILED)
  )
  return There(result | failed, {run: _saved(run) for run in begun - result - failed}, read)


def check_metrics(path: Path, there: There) -> None:
  """Raise ValueError for damaged metrics of a complete run, which a report would fail to read after all others."""
  for run in sorted(there.complete):
    if (run / run_dir.METRICS).exists():
      try:
        rows = run_dir.metric_lines(run / run_dir.METRICS)
        if (run / run_dir.RESULT).exists() and rows[-1:] != [run_dir.read_result(run)]:
          raise ValueError(f"{run / run_dir.METRICS} ends before the run did")
      except ValueError as error:
        raise ValueError(f"{error}; remove {run.relative_to(path.parent)} to train that run again") from error


def to_train(comparison: Comparison, path: Path, there: There) -> list[str]:
  """Labels that are asked for and have seeds that are not complete."""
  names = [f"seed-{seed}" for seed in comparison.seeds]
  asked = [label for label in comparison.experiments if label not in there.read]
  return [label for label in asked if any(path / slug(label) / name not in there.complete for name in names)]


def run(
  comparison: Comparison,
  components: Mapping[str, Components],
  path: Path,
  there: There,
  options: RunOptions,
  computed_from: Mapping[str, str],
) -> tuple[dict[str, list[str]], dict[str, str], int]:
  """Make all runs: (folders by label, why labels diverged, how many runs came to their end).

  computed_from: the inputs of the comparison, see `ddl.run.inputs`.
  """
  runs, failed, ended, how = {}, {}, 0, ""
  first = components[next(iter(components))]
  evaluator = Evaluator(first.model, first.data.test)
  virtual = compared_in_virtual_time(comparison.experiments.values())
  for label, each in components.items():
    runs[label] = [f"{slug(label)}/seed-{seed}" for seed in comparison.seeds]
    if label in there.read:
      runs[label] = [run for run in there.read[label] if path / run in there.complete or path / run in there.saved]
      ended += sum((path / run / run_dir.RESULT).exists() for run in runs[label])
      if failures := [file for run in runs[label] if (file := path / run / run_dir.FAILED).exists()]:
        failed[label] = files.read_json(failures[-1])["diverged"]
      continue
    each = each._replace(model=checkpoints.started_from(options.init_from, each.model))
    together = 1 if virtual else _together(each, options, len(comparison.seeds))
    trainer, _ = build.make_trainer(each, build.vectorized(options, each.model) if together > 1 else options)
    before, how = how, trainer.describe()
    say(label if how == before else f"{label}: {how}")
    folders = {
      path / run: replace(each.experiment, seed=s) for s, run in zip(comparison.seeds, runs[label], strict=True)
    }
    mine = inputs.of_label(computed_from, each.experiment)
    for folder, outcome, clock in _outcomes(label, each, folders, trainer, together, there, evaluator, options, mine):
      seed, read = folders[folder].seed, " (complete, read from its folder)" if folder in there.complete else ""
      if virtual and hosts.is_main() and seed == comparison.seeds[0]:
        (clock or build.follow(trainer, folders[folder])).save(folder.parent)
      if isinstance(outcome, Diverged):
        failed[label] = str(outcome)
        say(f"  seed {seed}: {outcome}")
        continue
      ended += 1
      shown = ", ".join(f"{k} {outcome[k]:.4g}" for k in SCORES if k in outcome)
      say(f"  seed {seed}: {shown}{read}")
  return runs, failed, ended


def _together(components: Components, options: RunOptions, runs: int) -> int:
  """Return how many of a label's runs are trained as one batch."""
  workers = make_workers(components.experiment.workers, options.devices or None, options.members)
  steps = build.execution(components, workers, options).steps_per_call
  call_bytes = steps * build.step_bytes(components, workers)
  return min(runs, execution.most_together(components.model, workers.count, call_bytes))


def _outcomes(
  label: str, components: Components, folders: Mapping[Path, Experiment], trainer: Trainer, most: int,
  there: There, evaluator: Evaluator, options: RunOptions, computed_from: Mapping[str, str],
) -> Iterator[tuple[Path, dict[str, Any] | Diverged, RunClock | None]]:  # fmt: skip
  """Yield the last line of each run, or why it diverged, and its clock; complete runs are read and have no clock.

  most: the largest number of runs in a batch.
  """
  for folder in folders:
    if folder in there.complete:
      yield folder, _read(RunFolder(folder), folders[folder]), None
  parent = next(iter(folders)).parent
  first = True
  for group in _groups(parent, list(folders), most, there):
    left = sorted((run for run in group if run in folders and run not in there.complete), key=lambda x: _step(x, there))
    for _, equal in groupby(left, lambda x: _step(x, there)):
      some = list(equal)
      runs = []
      for folder in some:
        clock = build.follow(trainer, folders[folder])
        run_folder = RunFolder(folder, writes=hosts.is_main(), inputs=computed_from)
        clock.keep(run_folder)
        seeded = build.reseeded(components, folders[folder].seed)
        runs.append(SeedRun(seeded, run_folder, clock, folder in there.saved))
      batch = Batch(runs, trainer, [*map(group.index, some)], len(group))
      if first:
        train_loop.warm_up(batch, label)
      first = False
      words = f"{label}, " + (f"seed {folders[some[0]].seed}" if len(some) == 1 else pluralize(len(some), "seed"))
      store = RunCheckpoints(components.experiment.steps, options.checkpoint_every, final=False)
      hooks = [Losses(), Evaluation(batch, evaluator, options.batch_stats), TensorBoard()]
      hooks += [UserHooks(options.hooks, options)]
      if options.keep_models:
        hooks += [SaveModels(batch, store.due)]
      try:
        outcomes = train_loop.run(batch, store, hooks, words, run_dir.about(options.command))
      except Stopped as stopped:
        stopped.message = f"stopped in {words}, and saved; resume with: {resume_command('compare', parent.parent)}"
        raise
      for run, outcome in zip(runs, outcomes, strict=True):
        if isinstance(outcome, Diverged):
          run.folder.fail(str(outcome))
        if hosts.is_main():
          shutil.rmtree(run.folder.checkpoints, ignore_errors=True)  # of a run that is complete
      yield from zip(some, outcomes, (run.clock for run in runs), strict=True)


def _groups(parent: Path, folders: Sequence[Path], most: int, there: There) -> list[list[Path]]:
  """Runs that are made together, as recorded before the first of them: a resume gives each run the same bits."""
  file = parent / GROUPS
  groups = [[parent / run for run in group] for group in files.read_json(file)["runs"]] if file.exists() else []
  known = {run for group in groups for run in group}
  groups += [[run] for run in folders if run not in known and (run in there.complete or run in there.saved)]
  new = [run for run in folders if run not in {run for group in groups for run in group}]
  if new:
    size = -(-len(new) // -(-len(new) // most))  # the fewest groups, of nearly equal size
    groups += [new[i : i + size] for i in range(0, len(new), size)]
    if hosts.is_main():
      parent.mkdir(parents=True, exist_ok=True)
      run_dir.write_whole(file, json.dumps({"runs": [[run.name for run in group] for group in groups]}) + "\n")
  return groups


def _step(folder: Path, there: There) -> int:
  return there.saved.get(folder, -1)


def _read(folder: RunFolder, experiment: Experiment) -> dict[str, Any] | Diverged:
  """What a complete run left."""
  folder.reopen(experiment)
  if (folder.path / run_dir.FAILED).exists():
    return Diverged(str(files.read_json(folder.path / run_dir.FAILED).get("diverged")))
  return run_dir.read_result(folder.path)


def _saved(folder: Path) -> int:
  """The step of its last checkpoint, -1 without one; orbax would start the devices, whose number is not set yet."""
  return max((int(each.name) for each in RunFolder(folder).checkpoints.glob("*") if each.name.isdigit()), default=-1)
