"""A job on a cluster's device: the memory of its states, and its step with the shares that are known there.

A transformer that does not fit whole splits its parameters' states over devices (fully sharded, arXiv 1910.02054) and
recomputes activations, each only if it must. The gathering of split weights is not in the step.
"""

from typing import NamedTuple

from ddl.perf.devices import lookup
from ddl.perf.devices.model import Shares, device_step, transformer
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import Efficiency
from ddl.perf.planning import bounds
from ddl.perf.planning.batch import Job
from ddl.perf.step.layers import Table
from ddl.perf.step.memory import MIXED, SINGLE, Format, StepMemory, step_memory, training_memory
from ddl.perf.tables import named
from ddl.perf.tables.totals import params, params_bytes, parts
from ddl.perf.units import bytes_text, percent

MOST_SPLIT = 4096  # devices


class Placed(NamedTuple):
  """A job on a device."""

  job: Job
  cluster: Cluster  # with the efficiency, or the middle of its range
  source: str  # of the efficiency, in words
  ends: tuple[tuple[str, Job, Cluster], ...] = ()  # of a range: the shares in words, and the job with them


class States(NamedTuple):
  """How a transformer fits."""

  memory: StepMemory
  split: int
  recomputed: bool
  why: str  # in words; "" where nothing had to be done


def table_job(name: str, cluster: Cluster, workers: int = 0) -> Placed:
  """Place a layer table: convolutions trained by SGD with momentum, transformers by Adam. workers: 0 if not known."""
  table, width = named(name), cluster.device.width
  if not transformer(table):
    memory = step_memory(table, extra_copies=1, width=width)
    return place(Job(name, params_bytes(table), parts(table), memory, table, usual=bounds.IMAGES), cluster)
  states = fitting(table, cluster, workers or cluster.workers or 0)
  title = f"{name}, an example being a sequence of {table[0].size_in[1]:,} tokens"
  usual = bounds.of_language(params(table), table[0].size_in[1])
  job = Job(title, params_bytes(table), parts(table), states.memory, table, least=1, split=states.split)
  job = job._replace(language=True, usual=usual)
  return place(job._replace(recomputed=states.recomputed, states=states.why), cluster)


def fitting(table: Table, cluster: Cluster, workers: int = 0) -> States:
  """Whole if a sequence fits so; else split, over as many devices as leave three quarters of the memory to activations.

  With fewer workers than that over all of them, or over the fewest that it takes. Activations are recomputed where a
  sequence does not fit otherwise.

  Raises:
    ValueError: if its activations alone do not fit, with their bytes.
  """
  form, limit = MIXED if cluster.device.width == 2 else SINGLE, cluster.device.memory

  def memory(split: int) -> StepMemory | None:
    tried = (training_memory(table, form, recomputed=again, split=split) for again in (False, True))
    return next((each for each in tried if each.total(1) <= limit), None)

  least = next((2**i for i in range(MOST_SPLIT.bit_length()) if memory(2**i)), 0)
  if not least:
    need = training_memory(table, form, recomputed=True).per_example
    raise ValueError(f"a sequence does not fit: its activations need {bytes_text(need)} of {bytes_text(limit)}")
  split, whole = least, training_memory(table, form)
  while split > 1 and whole.fixed > limit / 4 * split and (not workers or 2 * split <= workers):
    split *= 2
  found = memory(split) or whole
  recomputed = found.per_example < whole.per_example
  return States(found, split, recomputed, _why(form, whole, split, least, recomputed))


def _why(form: Format, whole: StepMemory, split: int, least: int, recomputed: bool) -> str:
  text = f"{form.states} bytes a parameter ({form.title}): {bytes_text(whole.fixed)}"
  if split > 1:
    text += f", split over {split} devices ({least} at least); T_step leaves their gathering out"
  return text + ("; activations are recomputed" if recomputed else "")


def place(job: Job, cluster: Cluster) -> Placed:
  """Return the job with the shares known of its kind of network; the cluster's own if its device has no name."""
  found = lookup.find(cluster.device, lookup.kind_of(job.table) if job.table else job.kind)
  if found is None:
    source = f"{percent(cluster.efficiency.best)} of the peak, the cluster's own"
    return Placed(job._replace(source=source), cluster, source)
  source = found.source + ("; the middle stands here, both ends below" if len(found.ends) > 1 else "")
  job = job._replace(source=source)
  there, on = _with(job, cluster, found.middle)
  if len(found.ends) == 1:
    return Placed(there, on, source)
  return Placed(there, on, source, tuple((words(end), *_with(job, cluster, end)) for end in found.ends))


def with_shares(cluster: Cluster, kind: str) -> Cluster:
  """Return the cluster with the shares known of a kind of network that has no table, and their source; see `lookup`."""
  found = lookup.find(cluster.device, kind)
  if found is None:
    return cluster
  told = f"{words(found.middle)}{', the middle' if len(found.ends) > 1 else ''}: {found.source}"
  return cluster._replace(efficiency=_efficiency(found.middle), source=f"{cluster.source}; a step reaches {told}")


def words(shares: Shares) -> str:
  """Shares as a person reads them."""
  if shares.whole:
    return f"{percent(shares.product)} of the peak"
  return f"{percent(shares.product)} of the peak in products, {percent(shares.memory)} of the memory bandwidth"


def _with(job: Job, cluster: Cluster, shares: Shares) -> tuple[Job, Cluster]:
  if not job.table:
    return job._replace(shares=shares), cluster._replace(efficiency=_efficiency(shares))
  again = float(job.recomputed)
  step = device_step(job.table, cluster.device, shares, recomputed=again, split=job.split)
  return job._replace(step=step.parts, shares=shares), cluster._replace(device=step.device, efficiency=step.efficiency)


def _efficiency(shares: Shares) -> Efficiency:
  return Efficiency(shares.product, memory=1.0 if shares.whole else shares.memory)
