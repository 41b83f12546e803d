"""The number of workers for a job on a cluster, with its rows of a plan (first lemma of arXiv 1709.06622)."""

from collections.abc import Callable
from typing import NamedTuple

from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import Device, fixed_seconds, step_seconds
from ddl.perf.planning import speedup_bounds
from ddl.perf.planning.batch import Batch, Job
from ddl.perf.planning.rows import Row
from ddl.perf.units import percent, seconds_text

MOST_WORKERS = 65_536  # where the cluster has no limit
TRIED = 1024  # then, at most


class Counts(NamedTuple):
  """Numbers of workers that a cluster has, and the least efficiency of those that are chosen."""

  most: int
  least: float
  first: int = 1  # that can hold the job


def counts(cluster: Cluster, given: int, least: float, first: int = 1) -> Counts:
  """The numbers to choose from. ValueError for a given number that the cluster has not, or that can't hold the job."""
  limit = cluster.workers or MOST_WORKERS
  if not 0 <= given <= limit:
    raise ValueError(f"number of workers is {given}; invalid: must be from 1 to {limit:,} on this cluster")
  if first > min(given or limit, limit):
    have = f"give --workers={first} or more" if given else f"the cluster has {limit:,}"
    raise ValueError(f"the parameters and their copies need {first} devices; {have}")
  return Counts(max(cluster.workers or max(TRIED, given), first), least, first)


def most_workers(efficiency: Callable[[int], float], range_: Counts) -> int:
  """Return the largest of `doubled` up to which the efficiency stays at the least; the first if none."""
  found = range_.first
  for g in (g for g in doubled(range_.most) if g >= range_.first):
    if efficiency(g) < range_.least:
      break
    found = g
  return found


def worker_rows(
  job: Job, cluster: Cluster, batch: Batch, workers: int, range_: Counts, exact: Callable[[int, float, int], float],
  measured: float | None,
) -> tuple[Row, Row]:  # fmt: skip
  """Return the rows on weak and on strong scaling of synchronous SGD, whose gradients leave as they appear.

  Args:
    exact: (workers, examples of each, microbatches) -> seconds of its step.
    measured: R_O of one worker alone, see `planner.plan`.
  """
  x, micro, step, least = batch.examples, batch.micro, batch.step, range_.least

  started = cluster.device._replace(start=0.0)  # the start cancels out of T_C, where it would leave its rounding

  def alone(examples: float, device: Device = cluster.device) -> float:
    return micro * step_seconds(job.step, examples / micro, device, cluster.efficiency)

  # T_C of all examples on one worker: the part of its step that shrinks with them, from all of them to a share x.
  less = alone(x, started) if workers > 1 else micro * fixed_seconds(job.step, started, cluster.efficiency)
  compute = (alone(x * workers, started) - less) * workers / max(1, workers - 1)
  fixed = max(0.0, step - compute / workers) if measured is None else measured * step  # below 0 by rounding alone

  def exposed(count: int) -> float:  # of all examples on so many workers
    each = x * workers / count
    waited = exact(count, each, micro) - alone(each)
    return waited if waited > 1e-9 * alone(each) else 0.0  # else by rounding alone

  def overhead(count: int) -> float:
    return (fixed + exposed(count)) / compute

  def up_to(count: int) -> str:
    edge = "the cluster has no more" if cluster.workers else "no more were tried"
    return f"{percent(least)} up to {count}" + (f", {edge}" if count == range_.most else "")

  enough, took = most_workers(lambda count: step / exact(count, x, micro), range_), exact(workers, x, micro)
  fed = f"; the data feed at most {job.data // x} with {x} examples each" if job.data else ""
  overlapped = "synchronous SGD, gradients leave as they appear" if cluster.overlap else "synchronous SGD, no overlap"
  weak = Row(
    "workers (weak scaling)",
    str(workers),
    f"{x} examples each, {overlapped}: T_step / T = {seconds_text(step)} / {seconds_text(took)} = "
    f"{percent(step / took)}",
    up_to(enough) + fed,
  )
  strong = f"workers (strong scaling, {x * workers} examples)"
  if not compute > 1e-12 * alone(x * workers, started):  # it only reads its parameters
    return weak, Row(
      strong, "1", "a step takes as long with fewer examples, so that more workers gain nothing", "the step"
    )
  together, at = most_workers(lambda g: speedup_bounds.efficiency(g, overhead(g)), range_), overhead(workers)
  waited, host = seconds_text(exposed(workers)), "nothing fixed in a step"
  if measured is not None:
    host = f"host {seconds_text(fixed)} of each step, measured R_O = {measured:.3g}"
  elif fixed > 1e-9 * step:
    host = f"{seconds_text(fixed)} of each step, whatever its examples"
  bound = (
    f"speed-up below (1 + R_O) / R_O = {speedup_bounds.speedup_limit(at):.3g}" if at else "speed-up without a bound"
  )
  why = (
    f"R_O = T_O / T_C = ({host}, + {waited} waited) / {seconds_text(compute)} = {at:.3g}; "
    f"with {workers} alpha = (1 + R_O) / (1 + G R_O) = {percent(speedup_bounds.efficiency(workers, at))}, {bound}"
  )
  return weak, Row(strong, str(together), why, up_to(together))


def doubled(most: int) -> list[int]:
  """1, 2, 4, ... and `most`."""
  return sorted({*(2**i for i in range(most.bit_length())), most})
