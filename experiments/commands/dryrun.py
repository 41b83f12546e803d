"""`python run.py dryrun`: compile the training step for devices that this machine does not have."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from ddl.api import Data
from ddl.config.base import renamed
from ddl.config.catalog import Config, takes
from ddl.config.comparison import experiment_of, variants
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.errors import OptionError
from ddl.names import pluralize
from ddl.perf.cluster import Cluster
from ddl.perf.placement import with_shares
from ddl.perf.units import bytes_text
from ddl.run.build import load
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine
from experiments.command_line.shared_flags import run_options

TOPOLOGY = flags.DEFINE_string(
  "topology", "", "devices to compile for, such as v5e:4x4, v5p:2x2x4 or h200:2x8 (hosts x GPUs)"
)
ALGORITHMS = shared_flags.algorithms()
DEFAULTS = flags.DEFINE_bool("compiler_defaults", False, "compile without ddl's XLA options for overlap")
JSON = shared_flags.json()
for name in ("members", "sharding", "virtual_grad", "step_loop", "steps_per_call", "compilation_cache"):
  shared_flags.option(name)


def main(line: CommandLine) -> int:
  """Compile each algorithm, print its collectives, memory and overlap; return the exit code."""
  if ALGORITHMS.value == []:
    raise OptionError("algorithms", "one or more names, such as sync_sgd,dasgd")
  if not TOPOLOGY.value:
    raise OptionError("topology", "set (for example, to v5e:4x4 or h200:2x8)")
  jax.config.update("jax_platforms", "cpu")  # a dry run needs no local accelerator
  from experiments.dryrun import compiled, report, target  # not at the top: the platform must be set first

  options, topology = run_options(), target.find(TOPOLOGY.value)
  rows = len(topology.devices) // options.members
  if "workers" not in line.paths and len(topology.devices) % options.members == 0:
    line.config.workers = rows
  compiled.check_workers(topology, line.config.workers, options.members)
  experiments = _experiments(line)
  first = next(iter(experiments.values()))
  if topology.cluster:
    topology = topology._replace(cluster=with_shares(topology.cluster, str(first.model.name)))
  data = _data(first)
  job = compiled.CompiledJob(topology, data, options, not DEFAULTS.value)
  cluster: Any = topology.cluster
  print(_heading(first, topology.name, options, cluster))
  all_figures = []
  for label, experiment in experiments.items():
    figures = compiled.compiled(label, experiment, job)
    all_figures.append(figures)
    print(f"\n{label}: too large" if figures.refused else f"\n{label}\n{report.collectives(figures, priced=True)}")
  print(f"\n{report.summary(all_figures, cluster)}\n")
  print("\n".join(report.verdict(figures, cluster) for figures in all_figures))
  if JSON.value:
    Path(JSON.value).write_text(json.dumps([_plain(figures) for figures in all_figures], indent=2) + "\n")
  for label, figures in zip(experiments, all_figures, strict=True):
    if not compiled.fits(figures, cluster):
      other = compiled.smallest_that_fits(label, experiments[label], job, cluster)
      raise ValueError(report.too_large(figures, cluster.device.memory, other, topology.name))
  print(f"\nall algorithms fit into the {bytes_text(cluster.device.memory)} of a device")
  return 0


def _data(experiment: Experiment) -> Data:
  """Load the config's data set. Raises a ValueError that recommends synthetic data if the set cannot be loaded."""
  try:
    return load(experiment)
  except (OSError, ValueError) as error:
    raise ValueError(
      f"{str(error).rstrip('.')}. For a dry run, use config.data.name=synthetic with the task, shape and num_outputs "
      "of the data."
    ) from error


def _experiments(line: CommandLine) -> dict[str, Experiment]:
  """Map each algorithm label to its experiment; the devices determine the number of workers if the flags do not."""
  config = line.config
  if ALGORITHMS.value:
    experiments = {name: _with_algorithm(config, name, line.paths) for name in dict.fromkeys(ALGORITHMS.value)}
  elif config.compare.algorithms and "algorithm.name" not in line.paths:
    experiments = variants(config)
  else:
    experiment = Experiment.from_config(config)
    return {experiment.label: experiment}
  for variant in experiments.values():
    variant.workers = config.workers
  return {label: experiment_of(label, variant) for label, variant in experiments.items()}


def _with_algorithm(config: Config, name: str, paths: Sequence[str]) -> Config:
  """Return the config with another algorithm.

  If a flag sets a key of config.algorithm that this algorithm does not take but another requested algorithm does, the
  key becomes None.
  """
  renamed_config = renamed(config, {"algorithm": {"name": name}})
  keys = {path.removeprefix("algorithm.") for path in paths if path.startswith("algorithm.")} - {"name"}
  with renamed_config.ignore_type():
    for key in keys:
      if not takes("algorithm", name, key) and any(takes("algorithm", other, key) for other in ALGORITHMS.value):
        renamed_config.algorithm[key] = None
  return renamed_config


def _heading(first: Experiment, name: str, options: RunOptions, cluster: Cluster) -> str:
  rows = pluralize(first.workers, "worker") + f" of {options.members} members" * (options.members > 1)
  what = f"{first.model.short_name} on {first.data.short_name}, {first.batch} examples per worker and step"
  how = "the compiler's defaults" if DEFAULTS.value else "ddl's options for overlap"
  return f"dry run on {name}: {what}, {rows}; {how}\ncluster: {cluster.title}; {cluster.source}"


def _plain(figures: Any) -> dict[str, Any]:
  rows = [row._asdict() | {"collective": row.collective._asdict()} for row in figures.rows]
  return figures._asdict() | {"seconds": figures.seconds, "rows": rows}
