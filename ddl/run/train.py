"""One run of one algorithm, as an ordinary function of its experiment and options."""

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from ddl import hosts
from ddl.algorithms import SERVER
from ddl.api import Algorithm, Data
from ddl.asynchronous.simulator import Simulator
from ddl.config.catalog import has_server
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions, check_read
from ddl.elastic import Elastic
from ddl.events.presence import Presence
from ddl.hosts.supervision import Memory, Order
from ddl.perf.units import counted
from ddl.run import checkpoints, compilation_cache, elastic, inputs, processes, replay, virtual_time
from ddl.run import loop as train_loop
from ddl.run.build import Components, build
from ddl.run.compiled import CompiledRun
from ddl.run.elastic import Generation, supervise
from ddl.run.exit_codes import Stopped, resumable
from ddl.run.folder import EVENTS, METRICS, RESULT, RunFolder, about, metric_lines, read_result
from ddl.run.hooks import Hooks, resolved
from ddl.run.metrics import Evaluator
from ddl.run.processes import check_processes, launch, launches, say, start_devices
from ddl.run.progress import has_bar
from ddl.run.realtime import RayRun, ThreadsRun
from ddl.run.runner import Runner
from ddl.run.trainers import check_members, describe, make_trainer, trainer_of_generation, virtual_seconds
from ddl.run.workdir import check_folder, resume_command, workdir

IGNORED = ("slow", "straggler_rate", "death_rate")  # keys of config.times, in real time


def train(experiment: Experiment, options: RunOptions | None = None) -> dict[str, Any]:
  """Trains and leaves the run in its folder; returns the last line of metrics.

  Raises:
    Diverged: if the loss is not finite; the last good checkpoint stays.
    Stopped: after SIGTERM or Ctrl-C; the run is saved.
    Failed: if one of several processes did.
    ValueError: for an invalid folder, options or experiment.
  """
  options = options or RunOptions()
  check_read("train", options)
  name, simulated = experiment.label, options.runtime == "simulator"
  if not simulated:
    _check_realtime(experiment, options)
  path = workdir(f"train-{name}", options)
  resumable(resume_command("train", path, options.command))
  apart = experiment.elastic and max(options.processes, hosts.processes()) > 1
  if not apart or hosts.processes() == 1:  # where one comes back to a job, its folder holds it
    check_folder(path, experiment, options)
  if options.resume and (path / RESULT).exists():
    if (path / METRICS).exists():
      metric_lines(path / METRICS)  # raises for a damaged line
    say(f"{_shown(read_result(path))}\n{path} is complete")
    return read_result(path)
  if launches(options):
    check_members(build(experiment), options, apart)  # what is wrong is said once, before any process starts
    chosen = replace(options, workdir=str(path))
    launch(train, experiment, chosen, experiment.workers, RunFolder(path).has_begun, apart)
    return read_result(path)
  if apart:
    check_processes(experiment.workers, hosts.processes(), options)
    supervise(experiment, options, path, partial(_train_generation, experiment, options, path, hosts.member()))
    return read_result(path)
  return _train(experiment, options, path)


def _train_generation(
  experiment: Experiment, options: RunOptions, path: Path, me: hosts.Membership, order: Order, memory: Memory
) -> None:
  """In a process of a job whose processes come and go: what an order says. me: its place in the job."""
  algorithm = experiment.make_algorithm()
  assert isinstance(algorithm, Algorithm)
  steps = virtual_time.round_steps(algorithm)
  generation = Generation(order, memory, me.rank, me.count, experiment.workers, steps)
  resume = options.resume or bool(order.stay) or order.resume
  _train(experiment, replace(options, resume=resume), path, generation)


def _train(
  experiment: Experiment, options: RunOptions, path: Path, generation: Generation | None = None
) -> dict[str, Any]:
  """In this process; a checkpoint of a whole job, or what its memory holds, is gone on with."""
  name, simulated = experiment.label, options.runtime == "simulator"
  hooks = resolved(options.hooks)
  compilation_cache.start(options.compilation_cache)
  start_devices(experiment.workers, options, generation.processes if generation else 0)
  components = build(experiment)
  check_members(components, options, generation is not None)
  first = generation.first if generation else None
  components = components._replace(model=checkpoints.started_from(options.init_from, components.model))
  computed_from = inputs.of([experiment], components.data, options.init_from)
  same = replace(options, resume=False, allow_changed_inputs=False, trust_code=False)
  processes.check(experiment.to_json(), same, components.data, computed_from, first)
  if options.resume:
    inputs.check(path, computed_from, options.allow_changed_inputs)
  folder = RunFolder(path, hosts.is_main(), options.recorded, computed_from)
  try:
    runner, virtual_seconds = (_simulated if simulated else _realtime)(components, folder, options, generation)
    loop = train_loop.Options(options.batch_stats, name, keep_model=True)
    evaluator = Evaluator(components.model, components.data.test)
    about = _about(options)
    called = Hooks(hooks, path, components, options)
    part = train_loop.Part(components, folder, virtual_seconds, options.resume, called)
    last = train_loop.run(part, runner, evaluator, loop, about)
  except Stopped as stopped:
    kept = f"saved; resume with: {resume_command('train', path, options.command)}"
    if options.runtime == "threads":
      kept = f"its metrics and {EVENTS} are kept in {path}; threads save no models, so that it can't go on"
    step = stopped.args[0]
    stopped.message = f"stopped at step {step} of {experiment.steps}{' and ' if simulated else ', '}{kept}"
    raise
  compiled = ""
  if isinstance(runner, CompiledRun):
    compiled = f", compiled in {runner.trainer.compile_seconds:.1f} s{compilation_cache.note()}"
  say(f"{_shown(last)}\n{last['examples'] / max(last.get('seconds', 0), 1e-9):.0f} examples/s{compiled}; {path}")
  return last


def _simulated(
  components: Components, folder: RunFolder, options: RunOptions, generation: Generation | None
) -> tuple[Runner, Any]:
  """In compiled calls: a collective algorithm, or a server's in virtual time; and the virtual seconds of a step."""
  if generation:
    lasting = trainer_of_generation(components, options, generation)
    say(f"{describe(lasting)}\n{_data_text(components.data)}")
    return CompiledRun([components], lasting, every=options.checkpoint_every, generation=generation), None
  recorded = replay.schedule(options.replay, folder.path if options.resume else None, components)
  trainer = make_trainer(components, options, recorded)
  say(describe(trainer))
  say(_data_text(components.data))
  if not has_bar():
    say("compiling")
  if isinstance(trainer, Simulator) and hosts.is_main():
    replay.keep(folder.path, trainer.events)
  if isinstance(trainer, Elastic):
    elastic.keep(folder, trainer.presence)
    say(trainer.presence.describe(components.experiment.steps))
  runner = CompiledRun(
    [components], trainer, every=options.checkpoint_every, relay=options.devices > 0 or options.members > 1
  )
  followed = recorded if isinstance(recorded, Presence) else None
  return runner, virtual_seconds(trainer, components.experiment, followed)


def _data_text(data: Data) -> str:
  """The description, with the number of training examples where it does not have that."""
  description, size = data.meta["description"], f"{data.train.size:,}"
  return description if size in description.split() else f"{description}; {size} training examples"


def _realtime(
  components: Components, folder: RunFolder, options: RunOptions, generation: Generation | None
) -> tuple[Runner, Any]:
  """On threads or Ray."""
  del folder, generation
  say(f"{counted(components.experiment.workers, 'worker')} on {options.runtime}; {components.data.meta['description']}")
  if options.runtime == "threads":
    return ThreadsRun(components), None
  say("starting Ray and its processes")
  return RayRun(components, options), None


def _check_realtime(experiment: Experiment, options: RunOptions) -> None:
  name = experiment.algorithm.short_name
  if not has_server(experiment.algorithm.name):
    raise ValueError(
      f"--runtime={options.runtime} is for algorithms with a server or peers, not {name}; there are {', '.join(SERVER)}"
    )
  ignored = [f"config.times.{key}" for key in IGNORED if experiment.times.get(key)]
  if ignored:
    warnings.warn(
      f"--runtime={options.runtime} runs in real time and ignores {', '.join(ignored)} and config.network", stacklevel=2
    )


def _about(options: RunOptions) -> dict[str, Any]:
  return about(options.command, device=str(jax.devices()[0].device_kind), runtime=options.runtime)


def _shown(line: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items())
