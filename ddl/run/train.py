"""Train one algorithm in the folder of its run, in one or several processes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from ddl import hosts
from ddl.api import Data
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.run import loop, ray_processes, realtime, replay
from ddl.run.batch import Batch, BatchRun, Diverged
from ddl.run.build import Components, build, check_options, make_trainer
from ddl.run.checkpoints import RunCheckpoints, Store, started_from
from ddl.run.exit_codes import Stopped
from ddl.run.folder import EVENTS, METRICS, RESULT, RunFolder, about, metric_lines, read_result
from ddl.run.hooks import SaveBest, SaveModels, default_hooks
from ddl.run.metrics import Evaluator, comparison_metric
from ddl.run.processes import launch, launches, say
from ddl.run.progress import has_bar
from ddl.run.session import Session, open_folder, session
from ddl.run.workdir import check_folder, resume_command


def train(experiment: Experiment, options: RunOptions | None = None) -> dict[str, Any]:
  """Train one algorithm in the folder of its run; return the last line of metrics.

  Raises:
    Diverged: if a loss, metric or parameter is not finite; the last good checkpoint remains.
    Stopped: after SIGTERM or Ctrl-C; the run has been saved, except on threads.
    Failed: if training in child processes or on Ray failed.
    ValueError: for an invalid folder, options or experiment.
  """
  options = options or RunOptions()
  path = open_folder("train", experiment.label, options)
  if options.runtime != "simulator":
    realtime.check(experiment, options.runtime)
  check_folder(path, experiment, options)
  if options.resume and (path / RESULT).exists():
    if (path / METRICS).exists():
      metric_lines(path / METRICS)  # raises for a damaged line
    say(f"{_text(read_result(path))}\n{path} is complete")
    return read_result(path)
  if ray_processes.needed(experiment, options):
    return ray_processes.launch(_train, experiment, options, path)
  if launches(options):
    check_options(build(experiment), options)  # before any process starts, so that an error is printed only once
    absolute = replace(options, workdir=str(path))
    launch(train, experiment, absolute, experiment.workers, RunFolder(path).has_begun)
    return read_result(path)
  return _train(experiment, options, path)


def _train(experiment: Experiment, options: RunOptions, path: Path, group: Any = None) -> dict[str, Any]:
  """Train in this process; see `train`. group: the `ProcessGroup` of an elastic run on Ray, else None."""
  with session(path, options, experiment.workers, group) as started:
    components = build(experiment)
    check_options(components, started.options, replaceable=group is not None)
    components = components._replace(model=started_from(options.init_from, components.model))
    fingerprints = started.agree(experiment.to_json(), [experiment], components.data)
    folder = RunFolder(path, hosts.is_main(), options.recorded, fingerprints)
    if options.runtime == "threads":
      return _run(components, folder, started, realtime.ThreadsTrainer(components, folder), realtime.NoStore())
    if options.runtime == "ray":
      return _run(components, folder, started, realtime.RayTrainer(components, folder, options), realtime.RayStore())
    any_layout = options.devices > 0 or options.members > 1
    checkpoints = RunCheckpoints(experiment.steps, options.checkpoint_every, any_layout=any_layout)
    if group:
      return _run(components, folder, started, *ray_processes.parts(components, options, group, checkpoints))
    recorded = replay.schedule(options.replay, path if options.resume else None, components)
    trainer, clock = make_trainer(components, options, recorded)
    return _run(components, folder, started, trainer, checkpoints, clock)


def _run(
  components: Components, folder: RunFolder, started: Session, trainer: Any, store: Store, clock: Any = None
) -> dict[str, Any]:
  """Run the training loop in a folder; return the last line of metrics. clock: by default the trainer is the clock."""
  options, experiment, clock = started.options, components.experiment, clock or trainer
  clock.keep(folder)
  if experiment.has_server and folder.writes:
    clock.save(folder.path)
  say(f"{trainer.describe()}\n{_data_text(components.data)}")
  if options.runtime == "simulator" and not has_bar():
    say("compiling")
  batch = Batch([BatchRun(components, folder, clock, options.resume)], trainer)
  hooks = default_hooks(batch, Evaluator(components.model, components.data.test, components.data.tests), options)
  if options.keep_best:
    data = components.data
    hooks += [SaveBest(comparison_metric("", "", components.model, {"": data.test}, data.meta.get("task", "")))]
  hooks += [SaveModels(batch, store.due)]
  versions = about(options.command, device=str(jax.devices()[0].device_kind), runtime=options.runtime)
  try:
    (outcome,) = loop.run(batch, store, hooks, experiment.label, versions)
  except Stopped as stopped:
    stopped.message = _stopped_text(stopped.args[0], experiment.steps, folder.path, options)
    raise
  if isinstance(outcome, Diverged):
    raise outcome
  rate = outcome["examples"] / max(outcome.get("seconds", 0), 1e-9)
  compiled = ""
  if options.runtime == "simulator":
    cached = f" ({len(started.cached)} programs from the cache)" if started.cached else ""
    compiled = f", compiled in {trainer.compile_seconds:.1f} s{cached}"
  say(f"{_text(outcome)}\n{rate:.0f} examples/s{compiled}; {folder.path}")
  return outcome


def _stopped_text(step: int, steps: int, path: Path, options: RunOptions) -> str:
  if options.runtime == "threads":
    files = f"metrics and {EVENTS} are in {path}"
    return f"stopped at step {step} of {steps}; {files}; threads save no checkpoints, so the run cannot be resumed"
  return f"stopped at step {step} of {steps} and saved; resume with: {resume_command('train', path, options.command)}"


def _data_text(data: Data) -> str:
  """Return the description of the data, including the number of training examples."""
  description, size = data.meta["description"], f"{data.train.size:,}"
  return description if size in description.split() else f"{description}; {size} training examples"


def _text(line: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items())
