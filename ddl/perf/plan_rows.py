"""Compute the rows of the plan's table: each has a quantity, its value, its formula and its limit."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.names import pluralize
from ddl.perf import collectives
from ddl.perf.batch_size import ENOUGH, TriedSizes
from ddl.perf.cluster import Cluster, NetworkModel
from ddl.perf.device import part_terms, step_parts
from ddl.perf.device_step import Shares, device_step, fastest, workspace
from ddl.perf.layers import is_convolution, train_flop
from ddl.perf.placement import Job
from ddl.perf.units import bytes_text, percent, rate_text, seconds_text

MOST_WORKERS = 65_536  # largest number of workers on a cluster without a limit
TRIED = 1024  # largest number of workers that is recommended on a cluster without a limit


class PlanRow(NamedTuple):
  """A row of the plan's table."""

  quantity: str
  value: str
  why: str  # the formula with its numbers
  limit: str  # what prevents a larger or smaller value


def counts(cluster: Cluster, requested: int, first: int = 1) -> list[int]:
  """Return the numbers of workers from which a plan can choose, `doubled` from `first` to the most.

  requested: the number of workers; 0: choose automatically. first: the smallest power of two that can hold the job.

  Raises:
    OptionError: if the cluster is too small, or fewer workers than `first` are requested.
  """
  limit = cluster.workers or MOST_WORKERS
  if not 0 <= requested <= limit:
    raise OptionError("workers", f"from 1 to {limit:,} on this cluster", requested)
  if first > (workers := min(requested or limit, limit)):
    raise OptionError("workers", f"at least {first} (to hold parameters, gradients and optimizer states)", workers)
  most = max(cluster.workers or max(TRIED, requested), first)
  return [workers for workers in doubled(most) if workers >= first]


def most_workers(efficiency: Callable[[int], float], counts: Sequence[int], least: float) -> int:
  """Return the largest of `counts` up to which all have at least the efficiency `least`; if none has, the first one."""
  largest = counts[0]
  for workers in counts:
    if efficiency(workers) < least:
      break
    largest = workers
  return largest


def doubled(most: int) -> list[int]:
  """Return the powers of two up to `most`, and `most` itself."""
  return sorted({*(2**i for i in range(most.bit_length())), most})


def one_worker(job: Job, cluster: Cluster, sizes: TriedSizes, rule: str) -> list[PlanRow]:
  """Return all rows about a single worker. rule: the rule that chose the number of examples; "": the default rule."""
  rows = [_examples(job, sizes, rule), _step(job, cluster, sizes)]
  if job.source:
    rows.append(_efficiency(job, cluster, sizes))
  if job.states:
    value = f"sharded over {job.split}" if job.split > 1 else "not sharded"
    limit = "memory" if job.split > 1 or job.recomputed else "nothing"
    rows.append(PlanRow("parameters' states", value, job.states, limit))
  if job.shares and not job.shares.whole and any(map(is_convolution, job.table)):
    rows.append(_convolutions(job, cluster, sizes, job.shares))
  return rows


def _examples(job: Job, sizes: TriedSizes, rule: str) -> PlanRow:
  x, micro = sizes.requested
  rate, best_rate = x / sizes.step, sizes.best / sizes.steps[sizes.best]
  rule = rule or (
    f"the smallest of {job.least}, {2 * job.least}, ... that fits and has at least {percent(ENOUGH)} of the best rate"
  )
  why = (
    f"{rule}: {x} / {seconds_text(sizes.step)} = {rate_text(rate)} examples/s per "
    f"worker, {percent(rate / best_rate)} of {rate_text(best_rate)} with {sizes.best} examples"
  )
  limit = (
    f"memory: {sizes.largest} examples fit" if sizes.largest != job.most else f"the data: {sizes.largest} examples"
  )
  if micro > 1:
    limit += f" in each of {micro} microbatches"
  least = job.least * micro
  if x > least and not job.table:  # a layer table has no configured batch
    limit += f"; {x / least:.3g} times the config's {least}, so tune the learning rate again"
  return PlanRow("examples per worker", str(x), why, limit)


def _step(job: Job, cluster: Cluster, sizes: TriedSizes) -> PlanRow:
  device, efficiency = cluster.device, cluster.efficiency
  x, micro = sizes.part, sizes.requested.micro
  one = sizes.step / micro
  terms = [part_terms(part, x, device, efficiency) for part in step_parts(job.step)]
  computing, moving = map(sum, zip(*terms, strict=True))
  slow = [max(term) for term in terms if term[1] > term[0]]
  start = f"{seconds_text(device.start)} to start + " if device.start else ""
  total, times = seconds_text(one), f"{micro} microbatches, each " if micro > 1 else ""
  tiles = " (whole tiles)" if job.shares and not job.shares.whole and any(map(is_convolution, job.table)) else ""
  why = f"computing {job.flop_per_example * x:.3g} FLOP{tiles} / ({device.peak:.3g} FLOP/s * {efficiency.at(x):.3g}) = "
  why += seconds_text(computing)
  if moving:
    rate = device.memory_bandwidth * efficiency.memory
    moved = f"{bytes_text(moving * rate)} / ({bytes_text(rate)}/s)"
    why += f", memory traffic {moved} = {seconds_text(moving)} ({device.width} bytes per value)"
    why += f"; {start}the larger of the two for each of {len(terms)} parts = {total}"
  elif start:
    why = f"{start}{why}: {total}"
  share = sum(slow) / one
  bound = f"memory bandwidth in {len(slow)} of {len(terms)} parts, {percent(share)} of the step" if slow else ""
  if device.start > 0.5 * one:
    bound = f"the start, {percent(device.start / one)} of the step"
  return PlanRow("step", seconds_text(sizes.step), f"T_step: {times}{why}", bound or "the peak rate")


def _efficiency(job: Job, cluster: Cluster, sizes: TriedSizes) -> PlanRow:
  work = (train_flop(job.table) if job.table else job.flop_per_example) * sizes.requested.examples
  share = percent(work / (cluster.device.peak * sizes.step))
  limit = f"{work:.3g} FLOP of the network / {seconds_text(sizes.step)} = {share} of {cluster.device.peak:.3g} FLOP/s"
  if job.shares and job.shares.winograd:
    limit += "; Winograd and FFT need fewer products than the network's FLOP"
  return PlanRow("efficiency of the step", share, job.source, limit)


def _convolutions(job: Job, cluster: Cluster, sizes: TriedSizes, shares: Shares) -> PlanRow:
  """Return the fastest convolution algorithms with a workspace in the memory that a microbatch leaves."""
  device, x = cluster.device, sizes.part
  left = max(0.0, device.usable - job.memory.total(x))
  kernels = shares._replace(start=0.0)  # the device's start includes it
  step = device_step(job.table, device, kernels, examples=x, room=left).seconds(x)
  direct = device_step(job.table, device, kernels._replace(winograd=0.0)).seconds(x)
  layers = [*filter(is_convolution, job.table)]
  names = [fastest(layer, shares, x, left / device.width) for layer in layers]
  used = device.width * max(workspace(name, layer, x) for name, layer in zip(names, layers, strict=True))
  why = f"0-1 program over the device's algorithms, with one workspace for all layers: a step of {seconds_text(step)}"
  why += f", direct only: {seconds_text(direct)}; T_step uses the fastest algorithm of each layer"
  algorithms = ", ".join(f"{n} {name}" for name, n in Counter(names).most_common())
  limit = f"{bytes_text(left)} are left for workspaces, {bytes_text(used)} are used"
  return PlanRow("convolutions", algorithms, why, limit)


def all_workers(
  job: Job, cluster: Cluster, sizes: TriedSizes, workers: int, counts: Sequence[int], least: float,
  exact: Callable[[int, float, int], float],
) -> PlanRow:  # fmt: skip
  """Return the row about the weak scaling of synchronous SGD.

  Args:
    sizes: those with the batch of a worker.
    workers: the number of workers.
    counts: the numbers of workers from which to choose.
    least: the efficiency that they must reach.
    exact: (workers, examples per worker, microbatches) -> seconds of a step.
  """
  (x, micro), step = sizes.requested, sizes.step
  enough, seconds = most_workers(lambda count: step / exact(count, x, micro), counts, least), exact(workers, x, micro)
  limit = f"efficiency of at least {percent(least)} up to {enough} workers"
  if enough == counts[-1]:
    limit += ", all of the cluster" if cluster.workers else ", the most that were tried"
  examples = f"{pluralize(x, 'example')} each"
  if job.data:
    limit += f"; the data suffice for at most {job.data // x} workers with {examples}"
  overlapped = "synchronous SGD, overlapped gradients" if cluster.overlap else "synchronous SGD, no overlap"
  times = f"{seconds_text(step)} / {seconds_text(seconds)} = {percent(step / seconds)}"
  return PlanRow("workers (weak scaling)", str(workers), f"{examples}, {overlapped}: T_step / T = {times}", limit)


def all_reduce(nbytes: float, workers: int, network: NetworkModel) -> PlanRow:
  """Return the row about the all-reduce: the cheapest algorithm, and the cost of each relative to the lower bound."""
  table = collectives.table(nbytes, workers, network)
  costs = ", ".join(f"{name} {seconds_text(seconds)} ({ratio:.3g})" for name, (seconds, ratio) in table.items())
  bound, nodes = seconds_text(collectives.network_bound(nbytes, workers, network)), network.nodes(workers)
  factor = 2 * (2 - network.main_link(workers).duplex)
  formula = f"ceil(log2 p) L + {factor:g} n G (p - 1) / p"
  if ("between" if nodes > 1 else "inside") in network.reduces:
    formula = f"L + {factor / 2:g} n G for switches that reduce"
  count = f"{nodes} nodes" if nodes > 1 else f"{workers} workers of a node"
  why = f"seconds for {bytes_text(nbytes)} (in parentheses: multiples of the lower bound): {costs}"
  limit = f"the bound {formula} = {bound} with p = {count}"
  if library := network.library:
    sizes = " to ".join(map(bytes_text, library.sizes))
    limit += f"; {library.name} was compared with measurements up to {library.tested} and with messages of {sizes}"
  return PlanRow("all-reduce", next(iter(table)), why, limit)
