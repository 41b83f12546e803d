"""Compile an experiment for target devices.

Also find the smallest number of devices per worker ("members") with which the experiment fits into memory.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl import files
from ddl.api import Algorithm, Data
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.engine import execution as compiler_options
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.placement import find_rules
from ddl.engine.workers import divisors, on_devices
from ddl.errors import OptionError
from ddl.perf.cluster import Cluster
from ddl.perf.placement import with_shares
from ddl.run.build import execution_of, make_model, with_auto
from ddl.run.compilation_cache import AUTO, OFF
from ddl.run.hooks import StepInfo
from ddl.run.processes import say
from experiments.dryrun import report
from experiments.dryrun.program import analyse, of_run
from experiments.dryrun.report import Figures, figures
from experiments.dryrun.target import Target, as_backend, cluster_of

TRIED = (2, 4, 8, 16)  # numbers of members to try if the program does not fit


class CompiledJob(NamedTuple):
  """Inputs of a dry run that are the same for all algorithms."""

  target: Target
  data: Data
  options: RunOptions
  overlaps: bool  # whether to use ddl's XLA options that overlap communication; False: the compiler's defaults


def check_workers(target: Target, workers: int, members: int) -> None:
  """Raise OptionError unless the workers use all devices of the target evenly. members: devices per worker."""
  count = len(target.devices)
  if count % members:
    fits = ", ".join(map(str, divisors(count)))
    raise OptionError(
      "members", f"one of {fits}", members, f"It must divide the {count} devices of {target.name} evenly."
    )
  rows = count // members
  if workers % rows:
    advice = f"{target.name} has {count} devices, and --members={members} is the number of devices per worker."
    raise OptionError("config.workers", f"a multiple of {rows}", workers, advice)


def compiled(label: str, experiment: Experiment, job: CompiledJob) -> Figures:
  """Compile a round of the experiment for the target; return its `Figures`.

  Raises:
    OptionError: for a server algorithm, or a batch that the microbatches and members do not divide evenly.
  """
  target, options = job.target, job.options
  algorithm = experiment.make_algorithm()
  if not isinstance(algorithm, Algorithm):
    condition = "a collective algorithm (dryrun supports no server algorithms)"
    raise OptionError("config.algorithm.name", condition, experiment.algorithm.short_name)
  workers = on_devices(experiment.workers, target.devices, options.members)
  batch = batch_shapes(job.data, experiment.batch)
  step = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(batch)) * max(1, len(workers.local))
  with as_backend(workers.platform):
    model = with_auto(make_model(experiment, job.data), experiment, options.members)
    parts = experiment.microbatches * options.members
    if options.members > 1 and find_rules(model, options.sharding).splits_batch and experiment.batch % parts:
      raise OptionError("config.batch", f"a multiple of {parts} (microbatches x members)", experiment.batch)
    execution = execution_of(model, workers, step, experiment.steps, options)
    trainer = CompiledTrainer(algorithm, model, workers, execution)
    flags = compiler_options.options(workers.device) if job.overlaps else {}
    analysed = analyse(trainer, batch, experiment.steps, experiment.eval_every, flags, cache(options.compilation_cache))
  return figures(label, experiment, trainer, analysed, target.cluster)


def batch_shapes(data: Data, examples: int) -> Mapping[str, Any]:
  """Return the shapes [examples, ...] and dtypes of a worker's batch by name."""
  one = data.train.take(np.arange(1))
  return {name: jax.ShapeDtypeStruct((examples, *x.shape[1:]), x.dtype) for name, x in one.items()}


def cache(where: str) -> Path | None:
  """Return the folder of saved analyses, or None if the cache is off. where: the value of --compilation_cache."""
  if where in OFF:
    return None
  return files.cache_folder() / "dryrun" if where == AUTO else Path(where) / "dryrun"


def fits(needed: Figures, cluster: Cluster) -> bool:
  """Return whether the compiled program fits into the memory of one device of the cluster."""
  return not needed.refused and needed.peak <= cluster.device.memory


def smallest_that_fits(label: str, experiment: Experiment, job: CompiledJob, cluster: Cluster) -> Figures | None:
  """Try increasing numbers of members; return the `Figures` of the first program that fits into memory, or None."""
  count = len(job.target.devices)
  for members in TRIED:
    even = experiment.batch % members == 0 and count % members == 0
    if members <= job.options.members or not even:
      continue
    other = replace(experiment, workers=count // members)
    try:
      candidate = compiled(label, other, job._replace(options=replace(job.options, members=members)))
    except ValueError:  # too few workers for the algorithm, or the sharding rules do not divide the model
      continue
    if fits(candidate, cluster):
      return candidate
  return None


def explain(info: StepInfo) -> None:
  """Print the memory and the collectives of a run's program, and on known devices its predicted seconds.

  This hook acts only at the start of a run.
  """
  if not info.first:
    return
  components, trainer = info.components, getattr(info.trainer, "all", info.trainer)  # if elastic: of all workers
  experiment, cluster = components.experiment, cluster_of(trainer.workers.device)
  cluster = cluster and with_shares(cluster, str(experiment.model.name))
  batch = batch_shapes(components.data, experiment.batch)
  programs = of_run(trainer, batch, experiment.steps, experiment.eval_every)
  result = figures(experiment.label, experiment, trainer, programs, cluster)
  tables = [report.summary([result], cluster), report.collectives(result, cluster is not None)]
  say("\n\n".join(tables + ([report.verdict(result, cluster)] if cluster else [])))
