"""One run of one algorithm, as an ordinary function of its experiment and options."""

import sys
import warnings
from dataclasses import replace
from typing import Any

import jax

from ddl.algorithms import SERVER
from ddl.runtime import hosts
from ddl.runtime.virtual.simulator import Simulator
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.train import compilation_cache, realtime, replay, train_loop
from experiments.train.build import Components, build, clock, describe, make_trainer
from experiments.train.evaluate import Evaluator
from experiments.train.exit_codes import Stopped
from experiments.train.processes import launch, say, start_devices
from experiments.train.run_dir import EVENTS, RESULT, RunFolder, about, read_result
from experiments.train.workdir import check_folder, short, workdir

TROUBLE = ("slow", "straggler_rate", "death_rate")


def train(experiment: Experiment, options: RunOptions | None = None) -> dict[str, Any]:
  """Trains and leaves the run in its folder; returns the last line of metrics.

  Raises:
    Diverged: if the loss is not finite; the last good checkpoint stays.
    Stopped: after SIGTERM or Ctrl-C; the run is saved.
    Failed: if one of several processes did.
    ValueError: for a folder, options or an experiment that cannot be.
  """
  options = options or RunOptions()
  name, simulated = experiment.algorithm.name, options.runtime == "simulator"
  if not simulated:
    _check_realtime(experiment, options)
  path = workdir(f"train-{name}", options)
  check_folder(path, experiment, options)
  if simulated and options.resume and (path / RESULT).exists():
    say(f"{_shown(read_result(path))}\n{path} is complete")
    return read_result(path)
  if simulated and options.processes > 1 and hosts.processes() == 1:
    build(experiment)  # what is wrong with the experiment is said once, before any process starts
    launch(train, experiment, replace(options, workdir=str(path)), experiment.workers)
    return read_result(path)
  compilation_cache.start(options.compilation_cache)
  start_devices(experiment.workers, options)
  components = build(experiment)
  folder = RunFolder(path, hosts.is_main(), options.recorded)
  try:
    return (_simulated if simulated else _realtime)(components, folder, options)
  except Stopped as stopped:
    kept = f"saved; {short('train', path)} goes on"
    if options.runtime == "threads":
      kept = f"its metrics and {EVENTS} are kept in {path}; threads save no models, so that it can't go on"
    step = stopped.args[0]
    stopped.told = f"stopped at step {step} of {experiment.steps}{' and ' if simulated else ', '}{kept}"
    raise


def _simulated(components: Components, folder: RunFolder, options: RunOptions) -> dict[str, Any]:
  """In compiled calls: a collective algorithm, or a server's in virtual time."""
  experiment = components.experiment
  events = replay.schedule(options.replay, folder.path if options.resume else None, components)
  trainer = make_trainer(components, options, events)
  run = train_loop.Options(
    options.resume, options.checkpoint_every, batch_stats=options.batch_stats, label=experiment.algorithm.name,
    clock=clock(trainer, experiment),
  )  # fmt: skip
  say(describe(trainer))
  say(f"{components.data.meta['description']}; {components.data.train.size} training examples")
  if not sys.stderr.isatty():  # where the progress bar says it
    say("compiling")
  if isinstance(trainer, Simulator) and hosts.is_main():
    replay.keep(folder.path, trainer.events)
  evaluator = Evaluator(components.model, components.data.test)
  last = train_loop.run(components, trainer, folder, evaluator, run, _about(options))
  if isinstance(trainer, Simulator) and hosts.is_main():
    replay.draw(folder.path, components, trainer.events, "time" if options.replay else "virtual time")
  speed = f"{last['examples'] / max(last.get('seconds', 0), 1e-9):.0f} examples/s"
  compiled = f"compiled in {trainer.compile_seconds:.1f} s{compilation_cache.told()}"
  say(f"{_shown(last)}\n{speed}, {compiled}; {folder.path}")
  return last


def _check_realtime(experiment: Experiment, options: RunOptions) -> None:
  name = experiment.algorithm.name
  if name not in SERVER:
    raise ValueError(
      f"--runtime={options.runtime} is for algorithms with a server or peers, not {name}; there are {', '.join(SERVER)}"
    )
  trouble = [f"config.times.{k}" for k in TROUBLE if experiment.times.get(k)]
  if trouble:
    told = f"{', '.join(trouble)} and the network's seconds are of virtual time"
    warnings.warn(f"--runtime={options.runtime} takes as long as it takes: {told}", stacklevel=2)


def _realtime(components: Components, folder: RunFolder, options: RunOptions) -> dict[str, Any]:
  """On threads or Ray."""
  say(f"{components.experiment.workers} workers on {options.runtime}; {components.data.meta['description']}")
  if options.runtime == "ray":
    say("starting Ray and its processes")
  run = realtime.threads if options.runtime == "threads" else realtime.ray
  last = run(components, folder, options, _about(options))
  say(f"{last['examples'] / max(last['seconds'], 1e-9):.0f} examples/s; {folder.path}")
  return last


def _about(options: RunOptions) -> dict[str, Any]:
  return about(options.command, device=str(jax.devices()[0].device_kind), runtime=options.runtime)


def _shown(line: dict[str, float]) -> str:
  return ", ".join(f"{k} {v:.4g}" for k, v in line.items())
