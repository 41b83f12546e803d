"""One run of one algorithm, as an ordinary function of its experiment and options."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax

from ddl import elastic, hosts
from ddl.api import Algorithm, Data
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.elastic.supervision import Memory, Order
from ddl.run import checkpoints, loop, processes, realtime, replay, virtual_time
from ddl.run.batch import Batch, Diverged, SeedRun
from ddl.run.build import Components, build, check_options, make_trainer, trainer_of_process
from ddl.run.checkpoints import Restored, RunCheckpoints, Store
from ddl.run.exit_codes import Failed, Stopped, exit_code
from ddl.run.folder import EVENTS, METRICS, RESULT, RunFolder, about, metric_lines, read_result
from ddl.run.hooks import SaveModels, TensorBoard, UserHooks
from ddl.run.metrics import Evaluation, Evaluator, Losses
from ddl.run.processes import check_processes, launch, launches, say
from ddl.run.progress import has_bar
from ddl.run.session import Session, open_folder, session
from ddl.run.workdir import check_folder, resume_command

MEMBERS = "members.json"  # the addresses of the supervisors of a job


def train(experiment: Experiment, options: RunOptions | None = None) -> dict[str, Any]:
  """Train one algorithm in its folder; return the last line of metrics.

  Raises:
    Diverged: if the loss is not finite; the last good checkpoint stays.
    Stopped: after SIGTERM or Ctrl-C; the run is saved.
    Failed: if one of several processes failed.
    ValueError: for an invalid folder, options or experiment.
  """
  options = options or RunOptions()
  path = open_folder("train", experiment.label, options)
  if options.runtime != "simulator":
    realtime.check(experiment, options.runtime)
  is_job = experiment.elastic and max(options.processes, hosts.processes()) > 1
  if not is_job or hosts.processes() == 1:  # a process that rejoins a job finds its folder in use
    check_folder(path, experiment, options)
  if options.resume and (path / RESULT).exists():
    if (path / METRICS).exists():
      metric_lines(path / METRICS)  # raises for a damaged line
    say(f"{_text(read_result(path))}\n{path} is complete")
    return read_result(path)
  if launches(options):
    check_options(build(experiment), options, is_job)  # before any process starts, so that an error is printed once
    absolute = replace(options, workdir=str(path))
    launch(train, experiment, absolute, experiment.workers, RunFolder(path).has_begun)
    return read_result(path)
  if is_job:
    return _supervise(experiment, options, path)
  with session(path, options, experiment.workers) as started:
    components = _components(experiment, started)
    folder = _folder(components, started)
    if options.runtime == "threads":
      return _run(components, folder, realtime.ThreadsTrainer(components, folder), realtime.NoStore(), started)
    if options.runtime == "ray":
      trainer = realtime.RayTrainer(components, folder, options)
      return _run(components, folder, trainer, realtime.RayStore(), started)
    recorded = replay.schedule(options.replay, path if options.resume else None, components)
    trainer, clock = make_trainer(components, options, recorded)
    return _run(components, folder, trainer, _checkpoints(experiment, options), started, clock)


def _components(experiment: Experiment, started: Session, is_job: bool = False) -> Components:
  """Build the experiment, and compare it with that of the other processes."""
  components = build(experiment)
  check_options(components, started.options, is_job)
  return components._replace(model=checkpoints.started_from(started.options.init_from, components.model))


def _folder(components: Components, started: Session) -> RunFolder:
  experiment = components.experiment
  fingerprints = started.agree(experiment.to_json(), [experiment], components.data)
  return RunFolder(started.path, hosts.is_main(), started.options.recorded, fingerprints)


def _checkpoints(experiment: Experiment, options: RunOptions) -> RunCheckpoints:
  any_layout = options.devices > 0 or options.members > 1
  return RunCheckpoints(experiment.steps, options.checkpoint_every, any_layout=any_layout)


def _run(
  components: Components, folder: RunFolder, trainer: Any, store: Store, started: Session, clock: Any = None
) -> dict[str, Any]:
  """Run the loop in the folder; return the last line of metrics. clock: by default the trainer's own."""
  options, experiment, clock = started.options, components.experiment, clock or trainer
  clock.keep(folder)
  if experiment.has_server and folder.writes:
    clock.save(folder.path)
  say(f"{trainer.describe()}\n{_data_text(components.data)}")
  if options.runtime == "simulator" and not has_bar():
    say("compiling")
  batch = Batch([SeedRun(components, folder, clock, options.resume)], trainer)
  hooks = [
    Losses(),
    Evaluation(batch, Evaluator(components.model, components.data.test), options.batch_stats),
    TensorBoard(),
    UserHooks(options.hooks, options),
    SaveModels(batch, store.due),
  ]
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
    kept = f"its metrics and {EVENTS} are in {path}"
    return f"stopped at step {step} of {steps}; {kept}; threads save no checkpoints, so that it can't be resumed"
  return f"stopped at step {step} of {steps} and saved; resume with: {resume_command('train', path, options.command)}"


def _supervise(experiment: Experiment, options: RunOptions, path: Path) -> dict[str, Any]:
  """Supervise this process of an elastic job; return the last line of metrics.

  Raises:
    Failed: if the job failed, or continues without this process.
    ValueError: if the processes do not find each other, or differ.
  """
  check_processes(experiment.workers, hosts.processes(), options)
  code = elastic.supervise(
    partial(_train_in_job, experiment, options, path, hosts.member()),
    partial(exit_code, "train"),
    same=processes.text(experiment.to_json(), options),
    differs=processes.difference,
    check=(lambda: None) if hosts.RESTARTED in os.environ else lambda: check_folder(path, experiment, options),
    begun=RunFolder(path).has_begun,
    file=path / MEMBERS,
    join_timeout=options.join_timeout,
    silence=options.peer_timeout,
  )
  if code:
    raise Failed(code)
  return read_result(path)


def _train_in_job(
  experiment: Experiment, options: RunOptions, path: Path, me: Any, order: Order, memory: Memory
) -> int:
  """Train in one process of a job, from what the survivors hold or from a checkpoint; return the exit code."""
  round_steps = virtual_time.round_steps(cast(Algorithm, experiment.make_algorithm()))
  generation = elastic.Generation(order, memory, me.rank, me.count, experiment.workers, round_steps)
  options = replace(options, resume=options.resume or bool(order.stay) or order.resume)
  try:
    with session(path, options, experiment.workers, generation.first, generation.processes) as started:
      components = _components(experiment, started, is_job=True)
      folder, trainer = _folder(components, started), trainer_of_process(components, options, generation)
      store = elastic.MemoryStore(_checkpoints(experiment, options), generation, Restored)
      _run(components, folder, trainer, store, started, elastic.ElasticClock(trainer))
  except Stopped as stopped:
    if hosts.is_main():
      print(stopped.message, flush=True)
    return 128 + stopped.args[1]
  return 0


def _data_text(data: Data) -> str:
  """Return the description, with the number of training examples where it lacks that."""
  description, size = data.meta["description"], f"{data.train.size:,}"
  return description if size in description.split() else f"{description}; {size} training examples"


def _text(line: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items())
