"""The runs of a comparison: the seeds of each label, together where that is faster."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files, hosts
from ddl.asynchronous.simulator import Simulator
from ddl.config.comparison import Comparison
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.elastic import Elastic
from ddl.engine import execution
from ddl.engine.workers import make_workers
from ddl.events import lockstep, record
from ddl.names import slug
from ddl.perf.units import counted
from ddl.report.reader import SCORES
from ddl.run import build as made
from ddl.run import checkpoints, elastic, inputs, trainers, virtual_time
from ddl.run import folder as run_dir
from ddl.run import loop as train_loop
from ddl.run.build import Components
from ddl.run.compiled import CompiledRun
from ddl.run.exit_codes import Stopped
from ddl.run.folder import RunFolder
from ddl.run.hooks import Hooks
from ddl.run.loop import Diverged, Part
from ddl.run.metrics import Evaluator
from ddl.run.processes import say
from ddl.run.trainers import AnyTrainer
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
  virtual = trainers.clock_is_virtual(components.values())
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
    trainer = trainers.make_trainer(each, trainers.vectorized(options, each.model) if together > 1 else options)
    before, how = how, trainers.describe(trainer)
    say(label if how == before else f"{label}: {how}")
    folders = {
      path / run: replace(each.experiment, seed=s) for s, run in zip(comparison.seeds, runs[label], strict=True)
    }
    mine = inputs.of_label(computed_from, each.experiment)
    for folder, outcome in _outcomes(label, each, folders, trainer, together, there, evaluator, options, mine):
      seed, read = folders[folder].seed, " (complete, read from its folder)" if folder in there.complete else ""
      if hosts.is_main() and seed == comparison.seeds[0]:
        _keep_schedule(folder, folders[folder], trainer, virtual, bool(read))
      if isinstance(outcome, Diverged):
        failed[label] = str(outcome)
        say(f"  seed {seed}: {outcome}")
        continue
      ended += 1
      shown = ", ".join(f"{k} {outcome[k]:.4g}" for k in SCORES if k in outcome)
      say(f"  seed {seed}: {shown}{read}")
  return runs, failed, ended


def _together(components: Components, options: RunOptions, runs: int) -> int:
  """Return how many of a label's runs are made side by side."""
  workers = make_workers(components.experiment.workers, options.devices or None, options.members)
  steps = trainers.execution(components, workers, options).steps_per_call
  call_bytes = steps * trainers.step_bytes(components, workers)
  return min(runs, execution.most_together(components.model, workers.count, call_bytes))


def _outcomes(
  label: str, components: Components, folders: Mapping[Path, Experiment], trainer: AnyTrainer, most: int,
  there: There, evaluator: Evaluator, options: RunOptions, computed_from: Mapping[str, str],
) -> Iterator[tuple[Path, dict[str, Any] | Diverged]]:  # fmt: skip
  """The last line of each run, or why it diverged; complete ones are read. most: runs that are made together."""
  for folder in folders:
    if folder in there.complete:
      yield folder, _read(RunFolder(folder), folders[folder])
  parent = next(iter(folders)).parent
  first = True
  for group in _groups(parent, list(folders), most, there):
    left = sorted((run for run in group if run in folders and run not in there.complete), key=lambda x: _step(x, there))
    for _, equal in groupby(left, lambda x: _step(x, there)):
      some = list(equal)
      parts = []
      for folder in some:
        seeded = made.reseeded(components, folders[folder].seed)
        clock = trainers.follow(trainer, folders[folder])
        run_folder = RunFolder(folder, writes=hosts.is_main(), inputs=computed_from)
        parts.append(
          Part(seeded, run_folder, clock, folder in there.saved, Hooks(options.hooks, folder, seeded, options))
        )
      if isinstance(trainer, Elastic):
        elastic.keep(parts[0].folder, trainer.presence)
      runner = CompiledRun(
        [part.components for part in parts],
        trainer,
        every=options.checkpoint_every,
        keep_final=False,
        lanes=[*map(group.index, some)],
        width=len(group),
      )
      if first:
        runner.warm_up(label)
      first = False
      words = f"{label}, " + (f"seed {folders[some[0]].seed}" if len(some) == 1 else counted(len(some), "seed"))
      loop = train_loop.Options(options.batch_stats, words, options.keep_models)
      try:
        found = train_loop.run_together(parts, runner, evaluator, loop, run_dir.about(options.command))
      except Stopped as stopped:
        stopped.message = f"stopped in {words}, and saved; resume with: {resume_command('compare', parent.parent)}"
        raise
      for part, outcome in zip(parts, found, strict=True):
        if isinstance(outcome, Diverged):
          part.folder.fail(str(outcome))
        if hosts.is_main():
          shutil.rmtree(part.folder.checkpoints, ignore_errors=True)  # of a run that is complete
      yield from zip(some, found, strict=True)


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


def _keep_schedule(folder: Path, experiment: Experiment, trainer: AnyTrainer, virtual: bool, read: bool) -> None:
  """Who was served when, or who waited for whom; virtual: seconds are, read: the run was made before."""
  if isinstance(trainer, Simulator):
    if read:
      trainers.follow(trainer, experiment)
    record.save(folder.parent / run_dir.EVENTS, trainer.events)
  elif virtual:
    every = trainer.all if isinstance(trainer, Elastic) else trainer
    charged = virtual_time.charges(experiment, every.traffic)
    waits = virtual_time.lockstep_record(experiment, every.algorithm, charged)
    lockstep.save(folder.parent / run_dir.LOCKSTEP, waits)
