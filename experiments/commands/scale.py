"""`python run.py scale`: predict how each algorithm scales on a cluster, and what limits it."""

import math
import shlex
import textwrap
import time
from itertools import pairwise

from absl import flags

from ddl import files
from ddl.algorithms import COLLECTIVE
from ddl.costs import scale
from ddl.costs.scale import Curve
from ddl.errors import OptionError
from ddl.models import MODELS
from ddl.names import pluralize
from ddl.perf import cluster_file, scaling
from ddl.perf.cluster import Cluster
from ddl.perf.layers import largest_batch
from ddl.perf.placement import Job
from ddl.perf.scaling import Transport
from ddl.perf.units import columns
from ddl.run.workdir import writable
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine

MAX_WORKERS = 65_536  # or nodes
MODEL = shared_flags.model()
shared_flags.cluster()
NODES = flags.DEFINE_string(
  "nodes",
  "",
  "numbers of nodes, such as 1,2,4 or 1,2,...,128; default: powers of 2 as numbers of workers, up to 128 nodes or the "
  "cluster's size",
)
WORKERS = shared_flags.workers()
BATCH = shared_flags.batch()
SCALING = flags.DEFINE_enum(
  "scaling", "strong", ["strong", "weak"], "strong: the total batch is fixed; weak: the batch per worker is fixed"
)
ALGORITHMS = shared_flags.algorithms()
PERIOD = flags.DEFINE_integer(
  "period", None, "steps per exchange; default: that of each algorithm", lower_bound=1, upper_bound=MAX_WORKERS
)
DELAY = flags.DEFINE_integer(
  "delay",
  None,
  "steps that overlap an exchange; default: that of each algorithm",
  lower_bound=0,
  upper_bound=MAX_WORKERS,
)
SERVERS = flags.DEFINE_integer("servers", 1, "parameter servers", lower_bound=1, upper_bound=65_536)
JITTER = flags.DEFINE_float(
  "jitter", 0.0, "coefficient of variation of step times", lower_bound=0.0, upper_bound=scaling.MOST_JITTER
)
OVERLAP = shared_flags.overlap()
BUCKET = flags.DEFINE_float(
  "bucket", 25.0, "MB of gradients sent in one message; 0: one message per layer", lower_bound=0.0, upper_bound=1e9
)
OUTER = flags.DEFINE_bool(
  "outer_overlap",
  False,
  "overlap each exchange without a delay, layer by layer, with the backward pass that precedes it (DiLoCo)",
)
MEASURE = flags.DEFINE_bool("measure", False, "also run the model on this machine; requires --cluster=measured")
WORKDIR = shared_flags.workdir()
DEFAULT = ["sync_sgd", "local_sgd", "dasgd"]


def main(line: CommandLine) -> int:
  """Print the scaling tables and write the page; return the exit code."""
  name, cluster = shared_flags.one_cluster()
  model, batch, weak = MODEL.value or "vgg_a", BATCH.value or 512, SCALING.value == "weak"
  _check_measure(name, model)
  workers = _workers(name, cluster, 10**9 if weak else batch)
  folder = writable(files.local(WORKDIR.value or f"runs/scale-{time.strftime('%Y%m%d-%H%M%S')}"))
  examples = batch if weak else max(1, batch // max(workers))  # per worker, with the largest number of workers
  placed, counted = scale.scaled_job(model, examples, cluster)
  job, cluster = placed.job, placed.cluster
  workers = scale.large_enough(workers, job)
  names = list(dict.fromkeys(_algorithms()))
  settings = scale.settings(names, period=PERIOD.value, delay=DELAY.value)
  overlap = OVERLAP.value == "on" and cluster.overlap
  transport = Transport(SERVERS.value, overlap, 1e6 * BUCKET.value, OUTER.value)

  def curves(job: Job, cluster: Cluster) -> list[Curve]:
    return scale.curves(
      job.work, cluster, workers, settings, transport, batch=batch, weak=weak, jitter=JITTER.value,
      largest=largest_batch(job.memory, cluster.device.usable),
    )  # fmt: skip

  predicted = curves(job, cluster)
  if MEASURE.value:
    processes = cluster.workers or 1
    if workers[0] != 1 or processes not in workers:
      condition = f"a list that contains 1 and {processes} if measure is set"
      advice = f"The cluster was calibrated with {pluralize(processes, 'process')}, which the measurement uses too."
      raise OptionError("nodes" if NODES.value else "workers", condition, ",".join(map(str, workers)), advice)
    from experiments.bench import microbench

    share = batch if weak else max(1, batch // processes)
    measured = microbench.measure_steps(model, settings, workers=processes, single_batch=batch, full_batch=share)
    predicted = [curve._replace(measured=measured[name]) for name, curve in zip(settings, predicted, strict=True)]
  head = scale.head(predicted)
  title = (
    f"{job.title} on {name}, {SCALING.value} scaling with {batch:,} examples per step{' and worker' if weak else ''}"
  )
  print(f"{title}: predicted\n{cluster.title}\nefficiency: {job.source}")
  if job.states:
    print(f"model states: {job.states}")
  for curve in predicted:
    print(f"\n{curve.algorithm}  {scale.setting(curve)}".rstrip())
    print(*(f"  {row}" for row in columns([head, *scale.rows(curve, cluster.network, len(head))])), sep="\n")
    print(f"  {scale.verdict(curve)}")
    if rates := scale.reached(curve, cluster.network):
      print(textwrap.fill(rates, 118, initial_indent="  ", subsequent_indent="  "))
  for shares, end, end_cluster in placed.ends:
    print(f"\nwith {shares}:")
    ends = curves(end, end_cluster)
    print(*(f"  {curve.algorithm}: {scale.verdict(curve)}" for curve in ends), sep="\n")
  if not weak:
    print(f"\n{scale.EFFICIENCY}")
  if warning := cluster.network.untested(max(workers)):
    print(f"\n{warning}")
  from ddl.report import scale_page

  page = scale_page.write(
    folder, predicted, cluster, job.work, title=title, weak=weak, counted=counted, jitter=JITTER.value,
    command=shlex.join(line.words),
  )  # fmt: skip
  print(f"\npage: {page}")
  return 0


def _algorithms() -> list[str]:
  return DEFAULT if ALGORITHMS.value is None else ALGORITHMS.value


def _check_measure(cluster: str, model: str) -> None:
  if not MEASURE.value:
    return
  if cluster != cluster_file.MEASURED or model not in MODELS:
    models = ", ".join(MODELS)
    advice = f"It requires --cluster={cluster_file.MEASURED} and one of the models {models}."
    raise OptionError("measure", f"unset with --cluster={cluster} and --model={model}", advice=advice)
  if server := [name for name in _algorithms() if name not in COLLECTIVE]:
    raise OptionError("algorithms", "collective when measure is set", ", ".join(server))


def _workers(name: str, cluster: Cluster, most: int) -> list[int]:
  """Return the worker counts; by default powers of 2 up to the smallest of 128 nodes, the cluster's size and `most`."""
  per_node, limit = cluster.network.per_node, cluster.workers or math.inf
  if NODES.value and WORKERS.value:
    raise OptionError("nodes", "unset when workers is set", NODES.value)
  if WORKERS.value:
    return _checked("workers", WORKERS.value, limit, f"{name} has {limit:,} workers")
  if NODES.value:
    nodes = cluster.network.nodes(cluster.workers) if cluster.workers else math.inf
    has = f"{name} has {nodes:,} node{'s' * (nodes > 1)} of {per_node} worker{'s' * (per_node > 1)}"
    return [n * per_node for n in _checked("nodes", NODES.value, nodes, has)]
  return [2**i for i in range(int(min(128 * per_node, limit, most)).bit_length())]


def _checked(flag: str, text: str, most: float, has: str) -> list[int]:
  """Parse a flag's numbers. has: text on the cluster's size for the error message.

  Raises OptionError if the text is invalid or a number is above `most`; in the second case it suggests valid numbers.
  """
  numbers = counts(flag, text)
  if numbers[-1] > most:
    fit = [n for n in numbers if n <= most] or [most]
    raise OptionError(flag, f"at most {most:,}", text, f"The cluster {has}; {','.join(map(str, fit))} would fit.")
  return numbers


def counts(flag: str, text: str) -> list[int]:
  """Parse "1,2,4" or "1,2,...,128"; the dots stand for doubling if that reaches the end, else for equal steps."""
  parts = [part.strip() for part in text.split(",")]
  dots = [i for i, part in enumerate(parts) if part in ("...", "…")]
  try:
    numbers = [int(part) for i, part in enumerate(parts) if i not in dots]
  except ValueError as error:
    raise OptionError(flag, "a list of integers (for example '1,2,4' or '1,2,...,128')", repr(text)) from error
  if dots:
    if len(dots) > 1 or dots[0] < 2 or dots[0] != len(parts) - 2:
      raise OptionError(flag, "at least two numbers, then '...' and the last number (as in '1,2,...,128')", repr(text))
    numbers = [*numbers[:-1], *_between(flag, *numbers[-3:])]
  if not all(1 <= n <= MAX_WORKERS for n in numbers) or any(a >= b for a, b in pairwise(numbers)):
    raise OptionError(flag, f"increasing numbers from 1 to {MAX_WORKERS:,}", text)
  return numbers


def _between(flag: str, first: int, second: int, last: int) -> list[int]:
  """Return the numbers after `second` up to and including `last`, by doubling or by equal steps."""
  if first > 0 and second == 2 * first:
    doubled = [second * 2**i for i in range(1, last.bit_length())]
    if last in doubled:
      return doubled[: doubled.index(last) + 1]
  step = second - first
  if step < 1 or last <= second or (last - second) % step or (last - second) // step > 200:
    condition = "a sequence that reaches its last number by doubling or by at most 200 equal steps"
    raise OptionError(flag, condition, f"'{first},{second},...,{last}'")
  return list(range(second + step, last + 1, step))
