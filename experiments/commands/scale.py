"""`python run.py scale`: how a model's training would scale on a cluster, for each algorithm, and what limits it."""

import math
import shlex
import time

from absl import flags

from ddl import files
from ddl.algorithms import COLLECTIVE
from ddl.costs import clusters
from ddl.costs import scale as scale_curves
from ddl.models import MODELS
from ddl.perf.hardware import Cluster
from ddl.perf.planning import scaling
from ddl.perf.planning.scenario import Transport
from ddl.run.workdir import writable
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine

MODEL = shared_flags.model()
shared_flags.cluster()
NODES = flags.DEFINE_string("nodes", "", "e.g. 1,2,4 or 1,2,...,128; default: doubled up to 128 or what there is")
WORKERS = shared_flags.workers()
BATCH = shared_flags.batch()
SCALING = flags.DEFINE_enum("scaling", "strong", ["strong", "weak"], "which batch stays the same")
ALGORITHMS = shared_flags.algorithms()
PERIOD = flags.DEFINE_integer(
  "period", None, "steps per exchange; default: each algorithm's own", lower_bound=1, upper_bound=scale_curves.MOST
)
DELAY = flags.DEFINE_integer(
  "delay", None, "steps beside an exchange; default: each algorithm's own", lower_bound=0, upper_bound=scale_curves.MOST
)
SERVERS = shared_flags.servers()
JITTER = flags.DEFINE_float(
  "jitter", 0.0, "standard deviation of step times over their mean", lower_bound=0.0, upper_bound=scaling.MOST_JITTER
)
OVERLAP = shared_flags.overlap()
BUCKET = flags.DEFINE_float(
  "bucket", 25.0, "MB of gradients that leave together; 0: layer by layer", lower_bound=0.0, upper_bound=1e9
)
ORDER = flags.DEFINE_enum(
  "order", "fifo", ["fifo", "priority"], "of gradients' messages; priority: what the next step needs first"
)
MEASURE = flags.DEFINE_bool("measure", False, "run ddl's own model on this machine too, with --cluster=measured")
WORKDIR = shared_flags.workdir()
DEFAULT = ["sync_sgd", "local_sgd", "dasgd"]


def main(line: CommandLine) -> int:
  """Print the tables and write the page; return the exit code."""
  name, cluster = shared_flags.one_cluster()
  model, batch, weak = MODEL.value or "vgg_a", BATCH.value or 512, SCALING.value == "weak"
  _check_measure(name, model)
  workers = _workers(name, cluster, 10**9 if weak else batch)
  folder = writable(files.local(WORKDIR.value or f"runs/scale-{time.strftime('%Y%m%d-%H%M%S')}"))
  together = batch if weak else max(1, batch // max(workers))  # examples of each worker where there are all
  work, room, counted, title = scale_curves.job(model, together, cluster.device.width)
  placed = scale_curves.placed(model, work, cluster)
  if placed.job.table:
    work, room, title = scale_curves.work_and_room(placed.job)
    workers = scale_curves.enough(workers, placed.job)
  cluster = placed.cluster
  names = list(dict.fromkeys(_algorithms()))
  settings = scale_curves.settings(names, period=PERIOD.value, delay=DELAY.value)
  transport = Transport(SERVERS.value or 1, OVERLAP.value == "on" and cluster.overlap, 1e6 * BUCKET.value, ORDER.value)
  curves = scale_curves.curves(
    work, cluster, workers, settings, transport, batch=batch, weak=weak, jitter=JITTER.value,
    largest=room(cluster.device.memory),
  )  # fmt: skip
  if MEASURE.value:
    most = cluster.workers or 1
    if workers[0] != 1 or most not in workers:
      raise ValueError(f"--measure measures 1 and {most} workers, as this machine was calibrated: use --nodes=1,{most}")
    from ddl.costs import scale_process

    share = batch if weak else max(1, batch // most)
    found = scale_process.measure(model, settings, workers=most, alone=batch, together=share)
    curves = [curve._replace(measured=found[each]) for each, curve in zip(settings, curves, strict=True)]
  head = scale_curves.head(curves)
  heading = f"{title} on {name}, {SCALING.value} scaling with {batch:,} examples a step{' and worker' if weak else ''}"
  print(f"{heading}: predicted\n{cluster.title}\nefficiency: {placed.source}")
  if placed.job.states:
    print(f"parameters' states: {placed.job.states}")
  for curve in curves:
    print(f"\n{curve.algorithm}  {scale_curves.setting(curve)}".rstrip())
    rows = [head, *scale_curves.rows(curve, cluster.network, len(head))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
      print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(f"  {scale_curves.verdict(curve)}")
  for words, end, there in placed.ends:
    made = scale_curves.curves(
      scale_curves.work_and_room(end)[0] if end.table else work, there, workers, settings, transport, batch=batch,
      weak=weak, jitter=JITTER.value, largest=room(there.device.memory),
    )  # fmt: skip
    print(f"\nwith {words}:")
    print(*(f"  {curve.algorithm}: {scale_curves.verdict(curve)}" for curve in made), sep="\n")
  if not weak:
    print(f"\n{scale_curves.EFFICIENCY}")
  from ddl.report import scale_page

  page = scale_page.write(
    folder, curves, cluster, work, title=heading, weak=weak, counted=counted, jitter=JITTER.value,
    command=shlex.join(line.words),
  )  # fmt: skip
  print(f"\npage: {page}")
  return 0


def _algorithms() -> list[str]:
  return DEFAULT if ALGORITHMS.value is None else ALGORITHMS.value


def _check_measure(cluster: str, model: str) -> None:
  if not MEASURE.value:
    return
  if cluster != clusters.NAME or model not in MODELS:
    raise ValueError(
      f"--measure runs ddl's own models on this machine: --model can be {', '.join(MODELS)}, with --cluster=measured"
    )
  if server := [name for name in _algorithms() if name not in COLLECTIVE]:
    raise ValueError(f"--measure runs collective algorithms alone, not {', '.join(server)}")


def _workers(name: str, cluster: Cluster, most: int) -> list[int]:
  """Numbers of --nodes or --workers, or doubled up to 128 nodes, the cluster's workers or `most`."""
  per_node, limit = cluster.network.per_node, cluster.workers or math.inf
  if NODES.value and WORKERS.value:
    raise ValueError("give --nodes or --workers, not both")
  if WORKERS.value:
    return _fitting("workers", WORKERS.value, limit, f"{name} has {limit:,} workers")
  if NODES.value:
    nodes = cluster.network.nodes(cluster.workers) if cluster.workers else math.inf
    has = f"{name} has {nodes:,} node{'s' * (nodes > 1)} of {per_node} worker{'s' * (per_node > 1)}"
    return [n * per_node for n in _fitting("nodes", NODES.value, nodes, has)]
  return [2**i for i in range(int(min(128 * per_node, limit, most)).bit_length())]


def _fitting(flag: str, text: str, most: float, has: str) -> list[int]:
  """Return the numbers of a flag; ValueError, with those that fit, where one is above `most`."""
  numbers = scale_curves.counts(flag, text)
  if numbers[-1] > most:
    fit = [n for n in numbers if n <= most] or [most]
    raise ValueError(f"--{flag}={text}: {has}; --{flag}={','.join(map(str, fit))} fits")
  return numbers
