"""Rows of a plan on one worker: examples, step, memory and convolutions."""

from collections import Counter

from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import part_terms, step_parts
from ddl.perf.planning.batch import ENOUGH, Batch, Job, Program
from ddl.perf.planning.rows import Row
from ddl.perf.step.convolution_costs import is_convolution
from ddl.perf.tables.totals import train_flop
from ddl.perf.units import bytes_text, percent, rate_text, seconds_text


def rows(job: Job, cluster: Cluster, batch: Batch, given: str) -> tuple[Row, ...]:
  """All rows on one worker. given: where the examples are from, "" if they are chosen."""
  found = [_examples(job, batch, given), _step(job, cluster, batch)]
  if job.source:
    found.append(_efficiency(job, cluster, batch))
  found.append(_memory(cluster, batch))
  if job.states:
    found.append(_states(job))
  return (*found, _convolutions(job, cluster, batch, batch.program)) if batch.program else tuple(found)


def _efficiency(job: Job, cluster: Cluster, batch: Batch) -> Row:
  work = train_flop(job.table) if job.table else job.flop_per_example
  share = work * batch.examples / (cluster.device.peak * batch.step)
  shown = f"{work * batch.examples:.3g} FLOP of the network / {seconds_text(batch.step)}"
  limit = f"{shown} = {percent(share)} of {cluster.device.peak:.3g} FLOP/s"
  if job.shares and job.shares.winograd:
    limit += "; Winograd and FFT take fewer products than the network's FLOP"
  return Row("efficiency of the step", percent(share), job.source, limit)


def _states(job: Job) -> Row:
  value = f"split over {job.split}" if job.split > 1 else "whole"
  return Row("parameters' states", value, job.states, "memory" if job.split > 1 or job.recomputed else "nothing")


def _examples(job: Job, batch: Batch, given: str) -> Row:
  x = batch.examples
  rule = f"the fewest of {job.least}, {2 * job.least}, ... with {percent(ENOUGH)} of the best rate that fits"
  why = (
    f"{given or rule}: {x} / {seconds_text(batch.step)} = {rate_text(batch.rate)} examples/s of a "
    f"worker, {percent(batch.rate / batch.best_rate)} of {rate_text(batch.best_rate)} with {batch.best}"
  )
  limit = f"memory: {batch.largest} fit" if batch.largest != job.most else f"the data: {batch.largest} examples"
  if batch.micro > 1:
    limit += f" in each of {batch.micro} microbatches"
  least = job.least * batch.micro
  if x > least and job.exact is not None:  # a layer table has no batch of its own
    limit += f"; {x / least:.3g} times the {least} of the config, so tune the rate anew"
  return Row("examples per worker", str(x), why, limit)


def _step(job: Job, cluster: Cluster, batch: Batch) -> Row:
  device, efficiency = cluster.device, cluster.efficiency
  x, one = batch.examples // batch.micro, batch.step / batch.micro
  terms = [part_terms(part, x, device, efficiency) for part in step_parts(job.step)]
  computing, moving = (sum(each) for each in zip(*terms, strict=True))
  slow = [max(term) for term in terms if term[1] > term[0]]
  begin = f"{seconds_text(device.start)} to start + " if device.start else ""
  total, times = seconds_text(one), f"{batch.micro} microbatches, each " if batch.micro > 1 else ""
  tiles = " (whole tiles)" if job.shares and not job.shares.whole and any(map(is_convolution, job.table)) else ""
  why = f"computing {job.flop_per_example * x:.3g} FLOP{tiles} / ({device.peak:.3g} FLOP/s * {efficiency.at(x):.3g}) = "
  why += seconds_text(computing)
  if moving:
    rate = device.memory_bandwidth * efficiency.memory
    moved = f"{bytes_text(moving * rate)} / ({bytes_text(rate)}/s)"
    why += f", moving {moved} = {seconds_text(moving)} ({device.width} bytes a value)"
    why += f"; {begin}the larger of both for each of {len(terms)} parts = {total}"
  elif begin:
    why = f"{begin}{why}: {total}"
  share = sum(slow) / one
  bound = f"memory bandwidth in {len(slow)} of {len(terms)} parts, {percent(share)} of the step" if slow else ""
  if device.start > 0.5 * one:
    bound = f"its start, {percent(device.start / one)} of it"
  return Row("step", seconds_text(batch.step), f"T_step: {times}{why}", bound or "the peak rate")


def _memory(cluster: Cluster, batch: Batch) -> Row:
  why = (
    "feature maps, copies of the weights and the optimizer's state, counted for "
    f"{batch.examples // batch.micro} examples: {bytes_text(batch.needed)}"
  )
  if batch.exact is not None:
    why = f"compiled step (XLA, this backend): {bytes_text(batch.exact)}; {why}"
  needed = batch.needed if batch.exact is None else batch.exact
  return Row("memory per worker", bytes_text(needed), why, f"the device has {bytes_text(cluster.device.memory)}")


def _convolutions(job: Job, cluster: Cluster, batch: Batch, program: Program) -> Row:
  shared, one = program.shared, batch.step / batch.micro
  saved = one - program.step
  chosen = ", ".join(f"{n} {name}" for name, n in Counter(shared.algorithms).most_common())
  left = bytes_text(cluster.device.memory - batch.needed)
  limit = f"{left} are left for workspaces, {bytes_text(shared.workspace)} used"
  if job.shares and not job.shares.whole:
    why = f"0-1 program over the device's algorithms, with one workspace for all layers: {seconds_text(shared.seconds)}"
    why += f", direct alone {seconds_text(program.direct)}; T_step has the fastest of each layer"
    if saved < -0.001 * one:
      why += f", for which memory is too small here: it takes {seconds_text(program.step)}"
    return Row("convolutions", chosen, why, limit)
  why = (
    f"0-1 program over modelled algorithms: {seconds_text(shared.seconds)} with one workspace for all layers, "
    f"{seconds_text(program.separate.seconds)} with one each; direct, as in T_step, {seconds_text(program.direct)}"
  )
  if saved > 0.001 * one:
    why += (
      f". If the kernels are as good, a step takes {seconds_text(program.step)}, fastest for {program.best} examples; "
      "no other row counts on it"
    )
  return Row("convolutions", chosen, why, limit)
