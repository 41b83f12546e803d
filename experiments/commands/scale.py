"""`python run.py scale`: how a model's training would scale on a cluster, for each algorithm, and what limits it."""

import math
import shlex
import time

from absl import flags

from ddl import files
from ddl.algorithms import COLLECTIVE
from ddl.models import MODELS
from ddl.perf.hardware import Cluster
from ddl.perf.planning.scaling import Transport
from experiments.commands import shared_flags
from experiments.commands.config_flag import CommandLine
from experiments.costs import local_cluster, scale_curves, scale_text
from experiments.train.run_dir import writable

MODEL = shared_flags.model()
shared_flags.cluster()
NODES = flags.DEFINE_string("nodes", "", "e.g. 1,2,4 or 1,2,...,128; default: doubled up to 128 or what there is")
WORKERS = shared_flags.workers()
BATCH = shared_flags.batch()
SCALING = flags.DEFINE_enum("scaling", "strong", ["strong", "weak"], "which batch stays the same")
ALGORITHMS = flags.DEFINE_list("algorithms", ["sync_sgd", "local_sgd", "dasgd"], "names, with commas between")
PERIOD = flags.DEFINE_integer("period", None, "steps per exchange; default: each algorithm's own", lower_bound=1)
DELAY = flags.DEFINE_integer("delay", None, "steps beside an exchange; default: each algorithm's own", lower_bound=0)
SERVERS = shared_flags.servers()
JITTER = flags.DEFINE_float("jitter", 0.0, "standard deviation of step times over their mean", lower_bound=0.0)
OVERLAP = shared_flags.overlap()
BUCKET = flags.DEFINE_float("bucket", 25.0, "MB of gradients that leave together; 0: layer by layer", lower_bound=0.0)
ORDER = flags.DEFINE_enum(
  "order", "fifo", ["fifo", "priority"], "of gradients' messages; priority: what the next step needs first"
)
MEASURE = flags.DEFINE_bool("measure", False, "run ddl's own model on this machine too, with --cluster=measured")
WORKDIR = shared_flags.workdir()


def main(line: CommandLine) -> int:
  """Prints the tables and writes the page; returns the exit code."""
  name, cluster = shared_flags.one_cluster()
  _check_measure(name)
  workers = _workers(name, cluster)
  weak = SCALING.value == "weak"
  batch = _batch()
  folder = writable(files.local(WORKDIR.value or f"runs/scale-{time.strftime('%Y%m%d-%H%M%S')}"))
  work, room, counted, title = scale_curves.job(
    _model(), batch if weak else max(1, batch // max(workers)), cluster.device.width
  )
  settings = scale_curves.settings(list(dict.fromkeys(ALGORITHMS.value)), period=PERIOD.value, delay=DELAY.value)
  how = Transport(SERVERS.value or 1, OVERLAP.value == "on" and cluster.overlap, 1e6 * BUCKET.value, ORDER.value)
  curves = scale_curves.curves(
    work, cluster, workers, settings, how, batch=batch, weak=weak, jitter=JITTER.value,
    largest=room(cluster.device.memory),
  )  # fmt: skip
  if MEASURE.value:
    curves = _measured(curves, settings, workers, weak)
  head = scale_text.head(curves)
  told = f"{title} on {name}, {SCALING.value} scaling with {batch:,} examples a step"
  print(f"{told}{' and worker' if weak else ''}: predicted\n{cluster.title}")
  for curve in curves:
    print(f"\n{curve.algorithm}  {scale_text.setting(curve)}".rstrip())
    lines = [head, *scale_text.rows(curve, cluster.network, len(head))]
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    for row in lines:
      print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(f"  {scale_text.verdict(curve)}")
  if not weak:
    print(f"\n{scale_text.EFFICIENCY}")
  from experiments.report.figures import scale_page  # only now: matplotlib takes a while to import

  page = scale_page.write(
    folder, curves, cluster, work, title=told, weak=weak, counted=counted, jitter=JITTER.value,
    command=shlex.join(line.words),
  )  # fmt: skip
  print(f"\npage: {page}")
  return 0


def _model() -> str:
  return MODEL.value or "vgg_a"


def _batch() -> int:
  return BATCH.value or 512


def _check_measure(cluster: str) -> None:
  if MEASURE.value and (cluster != local_cluster.NAME or _model() not in MODELS):
    raise ValueError(
      f"--measure runs ddl's own models on this machine: --model can be {', '.join(MODELS)}, with --cluster=measured"
    )
  server = [name for name in ALGORITHMS.value if name not in COLLECTIVE]
  if MEASURE.value and server:
    raise ValueError(f"--measure runs collective algorithms alone, not {', '.join(server)}")


def _measured(
  curves: list[scale_curves.Curve], settings: dict[str, dict[str, int]], workers: list[int], weak: bool
) -> list[scale_curves.Curve]:
  """With the seconds of real steps of one worker and of all that the machine was calibrated with."""
  most = local_cluster.named(local_cluster.NAME).workers or 1
  if workers[0] != 1 or most not in workers:
    raise ValueError(f"--measure measures 1 and {most} workers, as this machine was calibrated: use --nodes=1,{most}")
  from experiments.costs import scale_process

  together = _batch() if weak else max(1, _batch() // most)
  found = scale_process.measure(_model(), settings, workers=most, alone=_batch(), together=together)
  return [curve._replace(measured=found[curve.algorithm]) for curve in curves]


def _workers(name: str, cluster: Cluster) -> list[int]:
  """Of --nodes or --workers, or doubled up to 128 nodes or what the cluster has."""
  per_node = cluster.network.per_node
  there = cluster.workers or math.inf
  if NODES.value and WORKERS.value:
    raise ValueError("give --nodes or --workers, not both")
  if WORKERS.value:
    return _fitting("workers", WORKERS.value, there, f"{name} has {there:,} workers")
  if NODES.value:
    nodes = cluster.network.nodes(cluster.workers) if cluster.workers else math.inf
    has = f"{name} has {nodes:,} node{'s' * (nodes > 1)} of {per_node} worker{'s' * (per_node > 1)}"
    return [n * per_node for n in _fitting("nodes", NODES.value, nodes, has)]
  most = min(128 * per_node, cluster.workers or 128 * per_node, _batch() if SCALING.value == "strong" else 10**9)
  return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _fitting(flag: str, text: str, most: float, has: str) -> list[int]:
  """The numbers of a flag. ValueError, with those that fit, where one is above `most`."""
  numbers = scale_curves.counts(flag, text)
  if numbers[-1] > most:
    fit = [n for n in numbers if n <= most] or [most]
    raise ValueError(f"--{flag}={text}: {has}; --{flag}={','.join(map(str, fit))} fits")
  return numbers
