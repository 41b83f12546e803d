"""Place a training job on a cluster's device: compute the memory of its states and the work of its step.

If a transformer does not fit in memory, its parameter states are sharded over devices (arXiv 1910.02054), and
activations are recomputed if necessary. The step does not include the all-gather of sharded weights.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.perf import device_step, neural_networks
from ddl.perf.cluster import Cluster
from ddl.perf.device import Step, step_parts
from ddl.perf.device_step import Shares
from ddl.perf.layers import (
  MIXED,
  MOMENTUM,
  SINGLE,
  Attention,
  Embedding,
  FullAttention,
  StepMemory,
  Table,
  has_attention,
  params,
  params_bytes,
  parts,
  training_memory,
)  # fmt: skip
from ddl.perf.scaling import StepWork, work_of
from ddl.perf.units import bytes_text, percent

MOST_SPLIT = 4096  # maximum number of devices over which parameter states are sharded


LARGE = 1024  # examples per step above which a global batch may need another optimizer


class UsualBatch(NamedTuple):
  """The global batch sizes that published jobs used; a plan starts from them if the critical batch size is unknown."""

  examples: int  # the largest batch
  source: str
  start: int = 0  # the smallest batch; 0: the same as the largest
  large: str = ""  # optimizer for batches above LARGE; "": the same as for smaller batches

  def per_worker(self, workers: int) -> int:
    """Return a worker's share of the largest batch, at least 1.

    It is the nearest integer, or is rounded down if the nearest integer would exceed the batch by more than TOLERANCE.
    """
    share = round(self.examples / workers)
    return max(1, share if not self.exceeded(share * workers) else self.examples // workers)

  def exceeded(self, examples: float) -> bool:
    """Return whether a global batch exceeds the largest usual one by more than TOLERANCE."""
    return examples > (1 + TOLERANCE) * self.examples

  def optimizer(self, examples: float) -> str:
    """Return the optimizer that a global batch needs; "" for the usual one."""
    return self.large if examples > LARGE else ""


TOLERANCE = 0.1  # share by which a global batch may exceed the largest usual one
DATA = tomllib.loads(Path(__file__).with_name("usual_batches.toml").read_text(encoding="utf-8"))
USUAL = {kind: UsualBatch(**entry) for kind, entry in DATA["kind"].items()}


def usual_language_batch(params: float, length: int) -> UsualBatch:
  """Return the usual batch of a language model with `params` parameters, in sequences of `length` tokens."""
  entry = next(entry for entry in DATA["language"] if params < entry["below"])
  return UsualBatch(max(1, entry["tokens"] // length), entry["source"])


class Job(NamedTuple):
  """A training job. Figures are per worker unless noted; X is the number of examples of a worker's step."""

  title: str
  params_bytes: float
  step: Step  # its work, by layers
  memory: StepMemory
  table: Table = ()  # layer table, if there is one; its convolutions enter the 0-1 program
  kind: str = ""  # if there is no table: the kind of network, as in `device_step`
  remat: Callable[[], StepMemory] | None = None  # memory with config.model.remat=True; None: not an option
  least: int = 32  # smallest X to recommend; for a config, its microbatch
  most: int | None = None  # largest microbatch: a worker's examples / microbatches of the config; None: unlimited
  data: int | None = None  # examples in the data, for all workers together
  shares: Shares | None = None  # the shares of the device's peak rates from which `step` was computed
  split: int = 1  # number of devices over which the parameter states are sharded
  recomputed: bool = False  # whether activations are recomputed
  states: str = ""  # description of the parameter states
  source: str = ""  # description of the step's efficiency
  language: bool = False  # whether the job trains a language model
  usual: UsualBatch | None = None
  tokens: int = 0  # number per example; 0: an example is not a sequence of tokens

  @property
  def flop_per_example(self) -> float:
    """FLOP per example of a training step."""
    return sum(part.flop for part in step_parts(self.step))

  @property
  def work(self) -> StepWork:
    """The work of a step, by layers."""
    return work_of(self.step, self.params_bytes)


class PlacedJob(NamedTuple):
  """A job and a cluster with the efficiency of the job's step."""

  job: Job
  cluster: Cluster  # with this efficiency, or with the middle of its range
  ends: tuple[tuple[str, Job, Cluster], ...] = ()  # (description, job, cluster) at both ends of an efficiency range


def table_job(name: str, cluster: Cluster, workers: int = 0) -> PlacedJob:
  """Place the training job of a layer table: Adam for transformers, SGD with momentum for other networks.

  Args:
    name: the name of a layer table, which may specify other sizes (see `neural_networks.table`).
    workers: the number of workers; 0: unknown.
  """
  table, width = neural_networks.table(name), cluster.device.width
  language, tokens = isinstance(table[0], Embedding), table[0].size_in[1]
  title = f"{name} (an example is a sequence of {tokens:,} tokens)" if language else name
  job = Job(
    title, params_bytes(table), parts(table), training_memory(table, MOMENTUM._replace(value=width)), table,
    language=language, usual=_usual(name, table), tokens=tokens if language else 0,
  )  # fmt: skip
  return place(_fitting(job, cluster, workers or cluster.workers or 0) if has_attention(table) else job, cluster)


def _usual(name: str, table: Table) -> UsualBatch:
  """Return the usual batch for the kind of network that a layer table describes."""
  language, attention = isinstance(table[0], Embedding), [layer for layer in table if isinstance(layer, Attention)]
  if not attention:
    return USUAL["recurrent" if language else "alexnet" if name.startswith("alexnet") else "images"]
  if not language:
    return USUAL["vision"]
  if all(isinstance(layer, FullAttention) for layer in attention):
    return USUAL["encoder"]
  return usual_language_batch(params(table), table[0].size_in[1])


def _fitting(job: Job, cluster: Cluster, workers: int) -> Job:
  """Shard a transformer's parameter states, and recompute its activations, as far as the memory requires it.

  The states are not sharded if a sequence fits without sharding. Otherwise they are sharded over a power of two of
  devices: enough that three quarters of the memory remain for activations, but no more than there are workers, and at
  least the smallest number that fits. Activations are recomputed only if a sequence does not fit otherwise.

  workers: the number of workers; 0: unknown.
  """
  table, limit = job.table, cluster.device.usable
  form = MIXED if cluster.device.width == 2 else SINGLE

  def memory(split: int) -> StepMemory | None:
    candidates = (training_memory(table, form, recomputed=recomputed, split=split) for recomputed in (False, True))
    return next((candidate for candidate in candidates if candidate.total(1) <= limit), None)

  least = next((2**i for i in range(MOST_SPLIT.bit_length()) if memory(2**i)), 0)
  if not least:
    need = training_memory(table, form, recomputed=True, split=MOST_SPLIT).total(1)
    option = f"memory of a step on one sequence (recomputed, with states sharded over {MOST_SPLIT} devices)"
    raise OptionError(option, f"at most {bytes_text(limit)} (what a device can use)", bytes_text(need))
  split, whole = least, training_memory(table, form)
  while split > 1 and whole.fixed > limit / 4 * split and (not workers or 2 * split <= workers):
    split *= 2
  needed = memory(split) or whole
  recomputed = needed.per_example < whole.per_example
  text = f"{form.states} bytes per parameter ({form.title}): {bytes_text(whole.fixed)}"
  if split > 1:
    text += f", sharded over {split} devices (at least {least}); T_step does not include the all-gather"
  text += "; activations are recomputed" if recomputed else ""
  return job._replace(memory=needed, least=1, split=split, recomputed=recomputed, states=text)


def place(job: Job, cluster: Cluster) -> PlacedJob:
  """Place a job on a cluster, with the efficiency known for its kind of neural network on this device, if any.

  Otherwise, the job gets the efficiency of the cluster.
  """
  known = device_step.find(cluster.device, device_step.kind_of(job.table) if job.table else job.kind)
  if known is None:
    return PlacedJob(job._replace(source=f"{percent(cluster.efficiency.best)} of the peak, from the cluster"), cluster)
  ends = known.ends if len(known.ends) > 1 else ()
  job = job._replace(source=known.source + ("; the prediction uses the middle" if ends else ""))
  return PlacedJob(*_with(job, cluster, known.middle), tuple((end.text, *_with(job, cluster, end)) for end in ends))


def with_shares(cluster: Cluster, model: str) -> Cluster:
  """Return the cluster with the efficiency known for a model's kind of network on its device, if any.

  `source` then also states where this efficiency is from.
  """
  known = device_step.find(cluster.device, device_step.kind_of_model(model))
  if known is None:
    return cluster
  reached = f"{known.middle.text}{' (middle of a range)' if len(known.ends) > 1 else ''}: {known.source}"
  return cluster._replace(efficiency=known.middle.efficiency, source=f"{cluster.source}; a step reaches {reached}")


def _with(job: Job, cluster: Cluster, shares: Shares) -> tuple[Job, Cluster]:
  if not job.table:
    return job._replace(shares=shares), cluster._replace(efficiency=shares.efficiency)
  recomputed = float(job.recomputed)
  step = device_step.device_step(job.table, cluster.device, shares, recomputed=recomputed, split=job.split)
  return job._replace(step=step.parts, shares=shares), cluster._replace(device=step.device, efficiency=step.efficiency)
