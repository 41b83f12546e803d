"""One run of one algorithm, as an ordinary function of its experiment and options."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax

from ddl import elastic, hosts
from ddl.api import Algorithm, Data
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.errors import OptionError
from ddl.run import checkpoints, loop, realtime, replay, virtual_time
from ddl.run.batch import Batch, BatchRun, Diverged
from ddl.run.build import Components, build, check_options, check_process_loss, make_trainer, trainer_of_process
from ddl.run.checkpoints import Restored, RunCheckpoints, Store
from ddl.run.exit_codes import Failed, Stopped
from ddl.run.folder import EVENTS, METRICS, RESULT, RunFolder, about, metric_lines, read_result
from ddl.run.hooks import SaveModels, TensorBoard, UserHooks
from ddl.run.metrics import Evaluation, Evaluator, Losses
from ddl.run.processes import check_processes, launch, launches, say
from ddl.run.progress import has_bar
from ddl.run.session import Session, open_folder, session
from ddl.run.workdir import check_folder, resume_command


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
  check_folder(path, experiment, options)
  if options.resume and (path / RESULT).exists():
    if (path / METRICS).exists():
      metric_lines(path / METRICS)  # raises for a damaged line
    say(f"{_text(read_result(path))}\n{path} is complete")
    return read_result(path)
  if experiment.elastic and max(options.processes, hosts.processes()) > 1:
    return _train_on_ray(experiment, options, path)
  if launches(options):
    check_options(build(experiment), options)  # before any process starts, so that an error is printed once
    absolute = replace(options, workdir=str(path))
    launch(train, experiment, absolute, experiment.workers, RunFolder(path).has_begun)
    return read_result(path)
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
  """Build and check the objects of an experiment."""
  components = build(experiment)
  check_options(components, started.options, is_job)
  return components._replace(model=checkpoints.started_from(started.options.init_from, components.model))


def _folder(components: Components, started: Session) -> RunFolder:
  """Agree with the other processes on the experiment and its data; return the folder of the run."""
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
  batch = Batch([BatchRun(components, folder, clock, options.resume)], trainer)
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
    files = f"its metrics and {EVENTS} are in {path}"
    return f"stopped at step {step} of {steps}; {files}; threads save no checkpoints, so it cannot be resumed"
  return f"stopped at step {step} of {steps} and saved; resume with: {resume_command('train', path, options.command)}"


def _train_on_ray(experiment: Experiment, options: RunOptions, path: Path) -> dict[str, Any]:
  """Train in processes that Ray starts, of which some may fail; return the last line of metrics.

  Raises:
    Failed: if too few processes are left.
    Stopped: after SIGTERM or Ctrl-C; the run is saved.
    ValueError: if Ray is missing or has too few CPUs or GPUs, or a process raised it.
  """
  from ddl.elastic.ray_job import JobFailed, RayJob

  if hosts.processes() > 1:
    advice = "Ray starts the others: see processes and ray_address."
    raise OptionError("num_processes", "1 with config.elastic=True", hosts.processes(), advice)
  components = build(experiment)  # before any process starts, so that an error is printed once
  check_options(components, options, is_job=True)
  check_processes(experiment.workers, options.processes, options)
  check_process_loss(components, options.processes)
  round_steps = virtual_time.round_steps(cast(Algorithm, experiment.make_algorithm()))
  first = elastic.Membership(options.processes, experiment.workers, round_steps, tuple(range(options.processes)))
  run = partial(_train_in_process, experiment, replace(options, workdir=str(path)), path.absolute())
  say("starting Ray and its processes")
  job = RayJob(run, first, options, RunFolder(path).has_begun, lambda text: hosts.tell(f"train: {text}"))
  try:
    return job.train()
  except JobFailed as error:
    resume = resume_command("train", path, options.command)
    raise Failed(128 + job.signal if job.signal else 1, f"{error}; resume with: {resume}") from error
  except Stopped as stopped:
    stopped.args = stopped.args[0], job.signal or stopped.args[1]
    raise


def _train_in_process(
  experiment: Experiment, options: RunOptions, path: Path, membership: elastic.Membership
) -> dict[str, Any]:
  """Train in one process of an elastic job, from the states of the survivors or a checkpoint; see `train`."""
  options = replace(
    options,
    resume=options.resume or bool(membership.survivors) or membership.resume,
    peer_timeout=max(100.0, 10 * options.peer_timeout),  # JAX aborts all then; the driver notices a loss earlier
  )
  with session(path, options, experiment.workers, membership.reference, membership.processes) as started:
    components = _components(experiment, started, is_job=True)
    folder, trainer = _folder(components, started), trainer_of_process(components, options, membership)
    store = elastic.KeeperStore(_checkpoints(experiment, options), membership, Restored)
    return _run(components, folder, trainer, store, started, elastic.ElasticClock(trainer))


def _data_text(data: Data) -> str:
  """Return the description, with the number of training examples where it lacks that."""
  description, size = data.meta["description"], f"{data.train.size:,}"
  return description if size in description.split() else f"{description}; {size} training examples"


def _text(line: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items())
