"""Train the runs of one algorithm label of a comparison or sweep, several in one program if that is faster."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from ddl.report.reader import is_score
from ddl.run import build, checkpoints, inputs
from ddl.run import folder as run_dir
from ddl.run import loop as train_loop
from ddl.run.batch import Batch, BatchRun, Diverged, LoopHook
from ddl.run.build import Components
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.exit_codes import Stopped
from ddl.run.folder import RunFolder
from ddl.run.hooks import SaveBest, SaveModels, StopAtTarget, default_hooks
from ddl.run.metrics import Evaluator, Metric
from ddl.run.processes import say
from ddl.run.virtual_time import RunClock
from ddl.run.workdir import resume_command

GROUPS = "together.json"  # lists a label's batches of runs; each batch is trained in one program


class ExistingRuns(NamedTuple):
  """Folders of runs from earlier commands."""

  complete: set[Path]  # runs that finished or diverged
  saved: dict[Path, int]  # incomplete run -> step of its last checkpoint, -1 without one
  not_requested: Mapping[str, Sequence[str]]  # algorithm label -> runs that this command does not train

  def done(self, path: Path) -> dict[str, Any]:
    """Return {"runs": {folder relative to `path`: step of the last checkpoint, None for a complete run}}."""
    steps = dict.fromkeys(self.complete) | {run: step for run, step in self.saved.items() if step >= 0}
    return {"runs": {str(run.relative_to(path)): steps[run] for run in sorted(steps)}}


def existing_runs(path: Path, pattern: str, read: Mapping[str, Sequence[str]]) -> ExistingRuns:
  """Find the runs in folders that match a pattern. Call this once, before any process creates new folders.

  pattern: a glob pattern relative to `path`; read: the runs of each algorithm label that this command does not train.
  """
  files_of = (path.glob(f"{pattern}/{name}") for name in (run_dir.CONFIG, run_dir.RESULT, run_dir.FAILED))
  begun, result, failed = ({file.parent for file in files} for files in files_of)
  return ExistingRuns(result | failed, {run: _saved(run) for run in begun - result - failed}, read)


def check_metrics(path: Path, existing: ExistingRuns) -> None:
  """Raise ValueError for damaged metrics of complete runs, which would otherwise make the report fail at the end."""
  for run in sorted(existing.complete):
    if (run / run_dir.METRICS).exists():
      try:
        rows = run_dir.metric_lines(run / run_dir.METRICS)
        if (run / run_dir.RESULT).exists() and rows[-1:] != [run_dir.read_result(run)]:
          raise ValueError(f"{run / run_dir.METRICS} does not end with the metrics in {run_dir.RESULT}")
      except ValueError as error:
        raise ValueError(f"{error}; remove {run.relative_to(path.parent)} to train this run again") from error


def to_train(comparison: Comparison, path: Path, existing: ExistingRuns) -> list[str]:
  """Return the requested algorithm labels that lack a complete run for at least one seed."""
  names = [f"seed-{seed}" for seed in comparison.seeds]
  requested = [label for label in comparison.experiments if label not in existing.not_requested]
  return [label for label in requested if any(path / slug(label) / name not in existing.complete for name in names)]


def run(
  comparison: Comparison,
  components: Mapping[str, Components],
  path: Path,
  existing: ExistingRuns,
  options: RunOptions,
  all_fingerprints: Mapping[str, str],  # of the inputs of all labels, see `ddl.run.inputs`
  metric: Metric,  # of the comparison's target
) -> tuple[dict[str, list[str]], dict[str, str], int]:
  """Train all runs of a comparison.

  Return (run folders by algorithm label, error of each label with a diverged run, number of runs without divergence).
  """
  runs, failed, ended, description = {}, {}, 0, ""
  first = components[next(iter(components))]
  evaluator = Evaluator(first.model, first.data.test, first.data.tests)
  virtual = any(experiment.in_virtual_time for experiment in comparison.experiments.values())
  hooks: list[LoopHook] = [SaveBest(metric)] * options.keep_best
  hooks += [StopAtTarget(metric, comparison.target)] * comparison.stop_at_target
  for label, built in components.items():
    runs[label] = [f"{slug(label)}/seed-{seed}" for seed in comparison.seeds]
    if label in existing.not_requested:
      begun = existing.complete | existing.saved.keys()
      runs[label] = [run for run in existing.not_requested[label] if path / run in begun]
      ended += sum((path / run / run_dir.RESULT).exists() for run in runs[label])
      if failures := [file for run in runs[label] if (file := path / run / run_dir.FAILED).exists()]:
        failed[label] = files.read_json(failures[-1])["diverged"]
      continue
    built = built._replace(model=checkpoints.started_from(options.init_from, built.model))
    folders = [path / run for run in runs[label]]
    seeds = zip(folders, comparison.seeds, strict=True)
    experiments = {folder: replace(built.experiment, seed=seed) for folder, seed in seeds}
    fingerprints = inputs.fingerprints_of_label(all_fingerprints, built.experiment)
    max_runs = 1 if virtual else len(experiments)
    label_runs = LabelRuns("compare", path, label, built, existing, evaluator, options, fingerprints, max_runs)
    before, description = description, label_runs.trainer.describe()
    say(label if description == before else f"{label}: {description}")
    for folder, outcome, clock in label_runs.outcomes(experiments, hooks):
      seed, read = experiments[folder].seed, " (complete, read from its folder)" if folder in existing.complete else ""
      if virtual and hosts.is_main() and seed == comparison.seeds[0]:
        (clock or build.follow(label_runs.trainer, experiments[folder])).save(folder.parent)
      if isinstance(outcome, Diverged):
        failed[label] = str(outcome)
        say(f"  seed {seed}: {outcome}")
        continue
      ended += 1
      shown = ", ".join(f"{k} {outcome[k]:.4g}" for k in outcome if is_score(k))
      say(f"  seed {seed}: {shown}{read}")
  return runs, failed, ended


@dataclass(frozen=True)
class LabelRuns:
  """The runs of one algorithm label that share a trainer; they differ only in seeds and `traced` settings."""

  command: str  # "compare" or "sweep"
  path: Path  # folder of the comparison or sweep
  label: str
  components: Components  # of the first run
  existing: ExistingRuns
  evaluator: Evaluator
  options: RunOptions
  fingerprints: Mapping[str, str]  # of the label's inputs, see `ddl.run.inputs`
  max_runs: int  # per compiled program
  traced: Sequence[str] = ()  # settings that are arguments of the program, see `build.traced_settings`

  @cached_property
  def width(self) -> int:
    """The number of runs per program: more than one only for small models, for which this is faster."""
    experiment, options = self.components.experiment, self.options
    workers = make_workers(experiment.workers, options.devices or None, options.members)
    steps = build.execution(self.components, workers, options).steps_per_call
    call_bytes = steps * build.step_bytes(self.components, workers)
    return min(self.max_runs, execution.runs_per_program(self.components.model, workers.count, call_bytes))

  @cached_property
  def trainer(self) -> Trainer:
    """The trainer of all runs."""
    return build.make_trainer(self.components, self.options, traced=self.traced)[0]

  def outcomes(
    self, experiments: Mapping[Path, Experiment], hooks: Sequence[LoopHook] = ()
  ) -> Iterator[tuple[Path, dict[str, Any] | Diverged, RunClock | None]]:
    """Train the incomplete runs; yield (folder, last line of metrics or `Diverged`, clock) of every run.

    The clock is None for a run that was already complete. hooks: called in addition to the default hooks.
    """
    for folder, experiment in experiments.items():
      if folder in self.existing.complete:
        yield folder, _read(RunFolder(folder), experiment), None
    is_timed = self.command == "compare"
    for group in self._groups([*experiments]):
      incomplete = [run for run in group if run in experiments and run not in self.existing.complete]
      for _, equal in groupby(sorted(incomplete, key=self._saved_step), self._saved_step):
        folders = list(equal)
        runs = [self._run(folder, experiments[folder]) for folder in folders]
        batch = Batch(runs, self.trainer, [*map(group.index, folders)], len(group))
        if is_timed:
          train_loop.warm_up(batch, self.label)
        is_timed = False
        for run, outcome in zip(runs, self._train(batch, hooks), strict=True):
          if isinstance(outcome, Diverged):
            run.folder.fail(str(outcome))
          if hosts.is_main():
            shutil.rmtree(run.folder.checkpoints, ignore_errors=True)  # the run is complete
          yield run.folder.path, outcome, run.clock

  def _run(self, folder: Path, experiment: Experiment) -> BatchRun:
    clock = build.follow(self.trainer, experiment)
    run_folder = RunFolder(folder, writes=hosts.is_main(), inputs=self.fingerprints)
    clock.keep(run_folder)
    components, values = build.variant(self.components, experiment), experiment.numbers(self.traced)
    return BatchRun(components, run_folder, clock, folder in self.existing.saved, values)

  def _train(self, batch: Batch, more_hooks: Sequence[LoopHook]) -> list[dict[str, Any] | Diverged]:
    unit = "seed" if self.command == "compare" else "run"
    first, count = batch.runs[0].folder.path.relative_to(self.path / slug(self.label)), len(batch.runs)
    title = f"{self.label}, {str(first).replace('-', ' ') if count == 1 else pluralize(count, unit)}"
    store = RunCheckpoints(batch.experiment.steps, self.options.checkpoint_every, final=False)
    hooks = [*default_hooks(batch, self.evaluator, self.options), *more_hooks]
    if self.options.keep_models:
      hooks += [SaveModels(batch, store.due)]
    try:
      return train_loop.run(batch, store, hooks, title, run_dir.about(self.options.command))
    except Stopped as stopped:
      stopped.message = f"stopped and saved during {title}; resume with: {resume_command(self.command, self.path)}"
      raise

  def _groups(self, folders: Sequence[Path]) -> list[list[Path]]:
    """Divide the runs into batches, each of which is trained in one program.

    The batches are written to GROUPS before training, because a resumed run is bit-exact only at the same position in
    the same batch.
    """
    parent, known = self.path / slug(self.label), self.existing
    file = parent / GROUPS
    groups = [[parent / run for run in group] for group in files.read_json(file)["runs"]] if file.exists() else []
    grouped = {run for group in groups for run in group}
    groups += [[run] for run in folders if run not in grouped and (run in known.complete or run in known.saved)]
    new = [run for run in folders if run not in {run for group in groups for run in group}]
    if new:
      size = -(-len(new) // -(-len(new) // self.width))  # the fewest groups, of nearly equal size
      groups += [new[i : i + size] for i in range(0, len(new), size)]
      if hosts.is_main():
        parent.mkdir(parents=True, exist_ok=True)
        names = [[run.relative_to(parent).as_posix() for run in group] for group in groups]
        run_dir.write_whole(file, json.dumps({"runs": names}) + "\n")
    return groups

  def _saved_step(self, folder: Path) -> int:
    return self.existing.saved.get(folder, -1)


def _read(folder: RunFolder, experiment: Experiment) -> dict[str, Any] | Diverged:
  """Return the last line of metrics of a complete run, or `Diverged` if it diverged."""
  folder.reopen(experiment)
  if (folder.path / run_dir.FAILED).exists():
    return Diverged(str(files.read_json(folder.path / run_dir.FAILED).get("diverged")))
  return run_dir.read_result(folder.path)


def _saved(folder: Path) -> int:
  """Return the step of a run's last checkpoint; -1 without a checkpoint.

  This does not use orbax, which would initialize the devices.
  """
  return max((int(file.name) for file in RunFolder(folder).checkpoints.glob("*") if file.name.isdigit()), default=-1)
