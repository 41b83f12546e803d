"""Predict the seconds of a local step for one algorithm of each family, at the planner's settings.

Synchronous SGD: gradients are sent layer by layer during the backward pass; with k microbatches of b examples, only
during the backward pass of the last microbatch: T = (k - 1) T_step(b) + T_sync(b).

Number formats: integer formats have a float32 scale per block of 512 values, as in `ddl.algorithms.wrappers.int8`.
Their all-reduce is that of arXiv 2501.18512: a reduce-scatter that sums in float32, rounding, and an all-gather. It
sends as many values as any other all-reduce.

Sharded parameters: fully sharded (FSDP, ZeRO-3) over all workers, or hybrid (HSDP): sharded inside groups of nodes and
replicated between them (arXiv 1910.02054, arXiv 2304.11277). The parameters of each FSDP unit (consecutive layers) are
gathered in the device's number format before its forward pass and again before its backward pass, and its gradients are
reduce-scattered; meanwhile the next unit is gathered:
T = gather_1 + max(T_fwd, G) + max(T_bwd, G + R) + reduce_last,
where T_fwd is a third of the step, T_bwd the rest, and G and R are the seconds of the gathers and the reduce-scatters
of all units. Hybrid: G and R are inside a group; between groups, each worker all-reduces its shard of the gradients,
concurrently and on a different link.

Tensor parallelism: t devices of a node split the products and activations of each layer (arXiv 1909.08053, arXiv
2205.05198). Each block all-reduces its activations twice in the forward and twice in the backward pass, and twice more
if it is recomputed; nothing hides these messages. Optimizer states are sharded over the groups of t devices (ZeRO-1):
gradients are reduce-scattered during the last backward pass, and parameters are gathered during the next forward pass.

An island is a group of workers with faster links: a site, else a node, else a single worker. Inside an island, SGD is
synchronous (or sharded). Between islands, parameters are averaged every tau steps, and each worker of an island sends
an equal part of them: hierarchical SGD (arXiv 1808.07217), DiLoCo (arXiv 2311.08105) and Streaming DiLoCo (arXiv
2501.18512).
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ddl.names import pluralize
from ddl.perf import collectives, patterns, scaling
from ddl.perf.bounds import round_seconds, smallest_delay, smallest_period
from ddl.perf.cluster import Cluster, NetworkModel
from ddl.perf.device import Device, step_seconds
from ddl.perf.device_step import device_step
from ddl.perf.layers import FLOAT, MIXED, SINGLE, Attention, StepMemory, Table, params, training_memory
from ddl.perf.patterns import Op, Pattern
from ddl.perf.placement import Job

BLOCK = 512  # values per scale of an integer format
FORMATS = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1 + FLOAT / BLOCK, "int4": 0.5 + FLOAT / BLOCK}
COMPRESSED = ("bfloat16", "int8")  # formats to compare with the requested one
PASSES = 4  # passes of float32 gradients through memory to compress and decompress; assumed; casts are fused
MATRIX = 200e-6  # seconds of PowerSGD per matrix: about 20 small kernels of 10 us; assumed
RANK = 4  # of PowerSGD
UNIT = 25e6  # least bytes of float32 parameters that are gathered together
AHEAD = 2  # units that are in memory at once: the current one and the next
DILOCO = 500  # period of DiLoCo in steps, as in the paper
STREAMING = 100  # period of Streaming DiLoCo in steps, as in ddl's default
FRAGMENTS = 4  # of Streaming DiLoCo


def message_bytes(nbytes: float, name: str) -> float:
  """Convert the size of a float32 message to the format `name`, a key of FORMATS."""
  return nbytes * FORMATS[name] / FLOAT


def encode_seconds(nbytes: float, name: str, device: Device) -> float:
  """Return the seconds per step to compress and decompress gradients in format `name`; 0 for a cast.

  nbytes: n, the bytes of the gradients in float32. The result for an integer format is PASSES * n / memory bandwidth.
  """
  return PASSES * nbytes / device.memory_bandwidth if name.startswith("int") else 0.0


def powersgd(table: Table, rank: int) -> tuple[Op, Op]:
  """Return the two all-reduces of a step of PowerSGD (arXiv 1905.13727): P = M Q with the biases, then Q = M^T P.

  They send r (n + m) values of a matrix [n, m] with rank r <= min(n, m), or all n m values if these are fewer.
  """
  first = second = 0
  for layer in table:
    weights = min(layer.weights, layer.params)
    if not weights:
      first += layer.params
      continue
    rows, columns = weights // layer.outputs, layer.outputs  # a kernel is [kh kw ifm, ofm]
    thin = min(rank, rows, columns)
    compressed = thin * (rows + columns) < weights
    first += (rows * thin if compressed else weights) + layer.params - weights
    second += columns * thin * compressed
  return Op("all_reduce", FLOAT * first), Op("all_reduce", FLOAT * second)


def synchronous_seconds(
  job: Job, cluster: Cluster, workers: int, examples: float, name: str = "float32", micro: int = 1
) -> float:
  """Return the seconds of a step of synchronous SGD that sends gradients in the format `name`, a key of FORMATS.

  examples: examples of a worker's step, the sum over its `micro` microbatches.
  """
  part = examples / micro
  computing = step_seconds(job.step, part, cluster.device, cluster.efficiency)
  if workers == 1:
    return micro * computing
  pattern = Pattern(local=(Op("all_reduce", message_bytes(job.params_bytes, name)),))
  work, transport = job.work, scaling.Transport(overlap=cluster.overlap)
  last = scaling.seconds_of(scaling.Scenario(pattern, work, cluster, workers, part, transport))
  return (micro - 1) * computing + last + encode_seconds(job.params_bytes, name, cluster.device)


def powersgd_seconds(job: Job, cluster: Cluster, workers: int, examples: float, micro: int = 1) -> float:
  """Return the seconds of a step of synchronous SGD with PowerSGD compression; the job must have a layer table.

  Nothing overlaps: compression occupies the device, and is faster after the backward pass (arXiv 2103.00543).
  """
  computing = micro * step_seconds(job.step, examples / micro, cluster.device, cluster.efficiency)
  matrices = sum(1 for layer in job.table if layer.params)
  encode = PASSES * job.params_bytes / cluster.device.memory_bandwidth + MATRIX * matrices
  return computing + encode + patterns.seconds(powersgd(job.table, RANK), workers, cluster.network)


def sharded_seconds(
  job: Job, cluster: Cluster, workers: int, step: float, shards: int, name: str = "float32", micro: int = 1
) -> float:
  """Return the seconds of a step of synchronous SGD that shards parameters over neighboring workers.

  Args:
    step: seconds of the step without any exchange.
    shards: the number of shards, a divisor of the number of workers; each group of `shards` workers holds a replica.
    name: the number format of gradients, a key of FORMATS.
    micro: the number of microbatches, each of which gathers the parameters and reduce-scatters its gradients.
  """
  if workers == 1:
    return step
  step /= micro
  network = cluster.network
  inner = (
    network._replace(sites=1) if shards <= network.workers_per_node(workers) else network
  )  # in one node if possible
  outer = network.grouped(shards)

  @cache  # most units have the same size
  def unit_seconds(nbytes: float) -> tuple[float, float, float]:
    parameters, gradients = nbytes * cluster.device.width / FLOAT, message_bytes(nbytes, name)
    return (
      collectives.one_way("all_gather", parameters, shards, inner),
      collectives.one_way("reduce_scatter", gradients, shards, inner),
      collectives.all_reduce(gradients, workers // shards, outer),
    )

  gathers, scatters, copies = zip(*map(unit_seconds, shard_units(job)), strict=True)
  gather, scatter, between = sum(gathers), sum(scatters), sum(copies)
  encode = encode_seconds(job.params_bytes, name, cluster.device)
  if not cluster.overlap:
    return micro * (step + 2 * gather + scatter + between + encode)
  first, last = gathers[0], scatters[0] + copies[0]  # the first unit's gradients are computed last
  forward, backward = max(step / 3, gather), max(2 * step / 3, gather + scatter, between)
  return micro * (first + forward + backward + last + encode)


def shard_units(job: Job) -> list[float]:
  """Return the float32 bytes of the FSDP units in forward order.

  A unit has consecutive layers with at least UNIT bytes in total; the last unit may have fewer.
  """
  sizes, gathered = [], 0.0
  for nbytes in job.work.nbytes:
    gathered += nbytes
    if gathered >= UNIT:
      sizes.append(gathered)
      gathered = 0.0
  return [*sizes, gathered] if gathered or not sizes else sizes


def sharded_memory(job: Job, shards: int, width: int = FLOAT) -> StepMemory:
  """Return the memory of a step with sharded parameters: 1 / `shards` of all copies, and AHEAD gathered units.

  width: bytes of a gathered value.
  """
  if shards == 1:
    return job.memory
  fixed, whole = job.memory.fixed * job.split / shards, AHEAD * max(shard_units(job)) / FLOAT * width
  return StepMemory(job.memory.per_example, fixed + whole)


def shardings(network: NetworkModel, workers: int, shards: int = 1) -> list[tuple[str, int]]:
  """Return (algorithm, number of shards) of each possible sharding with at least `shards` shards.

  Parameters are sharded over all workers ("fsdp"), or over all workers of 1, 2, 4, ... nodes ("hybrid_fsdp").
  """
  if workers < max(2, shards):
    return []
  per_node = network.workers_per_node(workers)
  groups = [per_node * 2**i for i in range((workers // per_node).bit_length()) if per_node > 1]
  return [("fsdp", workers), *(("hybrid_fsdp", n) for n in groups if shards <= n < workers and workers % n == 0)]


def exact_seconds(
  job: Job, cluster: Cluster, workers: int, examples: float, micro: int = 1, *, shards: int = 1,
  gradients: str = "float32",
) -> float:  # fmt: skip
  """Return the seconds of a step of synchronous SGD; if `shards` > 1, with the fastest of `shardings`.

  The result is infinite for fewer workers than shards.
  """
  if shards == 1:
    return synchronous_seconds(job, cluster, workers, examples, gradients, micro)
  step = micro * step_seconds(job.step, examples / micro, cluster.device, cluster.efficiency)
  sizes = shardings(cluster.network, workers, shards)
  return min((sharded_seconds(job, cluster, workers, step, n, gradients, micro) for _, n in sizes), default=math.inf)


class Islands(NamedTuple):
  """A partition of the workers into islands: sites, nodes or single workers."""

  kind: str  # "sites", "nodes" or "workers"
  count: int
  members: int  # workers per island; the last one may have fewer
  inside: Cluster  # the cluster of one island
  between: NetworkModel  # the network between islands, each of which counts as one worker

  def message_seconds(self, nbytes: float) -> float:
    """Return the seconds of an all-reduce between all islands."""
    return collectives.all_reduce(nbytes, self.count, self.between)


def islands(cluster: Cluster, workers: int) -> Islands:
  """Partition the workers into sites if there are several, else into nodes, else into single workers."""
  network = cluster.network
  one_site = cluster._replace(network=network._replace(sites=1))
  if network.sites > 1 and workers > network.sites:
    members = -(-workers // network.sites)
    return Islands("sites", network.sites, members, one_site, network.grouped(members))
  members, count = network.workers_per_node(workers), network.nodes(workers)
  if network.inside and members > 1 and count > 1:
    return Islands("nodes", count, members, one_site, network.grouped(members))
  return Islands("workers", workers, 1, cluster, network)


def averaged(step: float, message: float, period: int) -> float:
  """Return the seconds per local step if workers wait `message` seconds for an average every `period` steps."""
  return round_seconds(step=step, message=message, period=period) / period


def streaming(step: float, message: Callable[[float], float], nbytes: float, *, overlap: bool) -> tuple[float, int]:
  """Return (seconds per local step T, delay d) of Streaming DiLoCo.

  Each of P = FRAGMENTS fragments is sent in int8 every H = STREAMING steps (ddl uses 8 bits, the paper 4):
  T = T_step + P max(0, T_message(n / P) - d T_step) / H, d = min(ceil(T_message(n / P) / T_step), H / P). The delay is
  at most H / P because the next fragment is sent after H / P steps, and 0 without overlap.

  Args:
    step: seconds of a step.
    message: bytes -> seconds of an average.
    nbytes: bytes of all parameters in float32.
    overlap: whether exchanges overlap computation.
  """
  seconds = message(message_bytes(nbytes / FRAGMENTS, "int8"))
  delay = min(smallest_delay(seconds, step), STREAMING // FRAGMENTS) if overlap else 0
  exposed = max(0.0, seconds - delay * step)
  return step + FRAGMENTS * exposed / STREAMING, delay


class FamilySettings(NamedTuple):
  """The settings with which the planner compares all algorithm families."""

  params_bytes: float  # in float32
  examples: int  # of a worker's step
  step: float  # seconds of a worker's step without any exchange
  workers: int
  delay: int  # of DaSGD
  period: int  # of DaSGD
  local_period: int  # of local SGD, without a delay
  micro: int = 1  # microbatches of a step
  shards: int = 1  # least number of workers that can hold one copy of the parameters together
  gradients: str = "float32"  # number format in which gradients are sent


class Speed(NamedTuple):
  """The predicted speed of one algorithm."""

  algorithm: str
  setting: str  # description of format, period, delay and the like
  seconds: float  # per local step
  efficiency: float  # seconds of a step without exchange / seconds
  rate: float  # examples per second of all workers
  steps: int = 0  # the period or the delay, whichever is larger
  batch: int = 0  # examples per step of all workers
  micro: int = 1  # microbatches of a step


def speed(settings: FamilySettings, algorithm: str, setting: str, seconds: float, steps: int = 0) -> Speed:
  """Return the speed of an algorithm, with efficiency and rate computed from the seconds per step."""
  s, batch = settings, settings.workers * settings.examples
  return Speed(algorithm, setting, seconds, s.step / seconds, batch / seconds, steps, batch, s.micro)


def families(job: Job, cluster: Cluster, settings: FamilySettings, share: float) -> tuple[Speed, ...]:
  """Predict the speeds of all applicable algorithm families.

  share: the maximum share of a round of hierarchical SGD that may be spent waiting.
  """
  replicated = settings.shards == 1  # each worker holds all parameters
  return (
    *(synchronous(job, cluster, settings) if replicated else ()),
    *sharded(job, cluster, settings),
    *tensor_parallel(job, cluster, settings),
    *(averaging(settings, cluster) if replicated else ()),
    *between_islands(job, cluster, settings, share),
  )


def synchronous(job: Job, cluster: Cluster, settings: FamilySettings) -> list[Speed]:
  """Predict the speeds of synchronous SGD with overlapped gradients in each number format, and with PowerSGD."""
  s = settings
  names = dict.fromkeys((s.gradients, *COMPRESSED) if s.workers > 1 else (s.gradients,))
  run = job, cluster, s.workers, s.examples
  speeds = [speed(s, "sync_sgd", f"{name} gradients", synchronous_seconds(*run, name, s.micro)) for name in names]
  if job.table and s.workers > 1:
    speeds.append(speed(s, "sync_sgd", f"PowerSGD, rank {RANK}", powersgd_seconds(*run, s.micro)))
  return speeds


def sharded(job: Job, cluster: Cluster, settings: FamilySettings) -> list[Speed]:
  """Predict the speeds of synchronous SGD with full sharding and with the fastest hybrid sharding.

  Full sharding is first in the list if all-reduces of that many workers were compared with measurements; otherwise,
  hybrid sharding is first.
  """
  s = settings
  best: dict[str, Speed] = {}
  for name, shards in shardings(cluster.network, s.workers, s.shards):
    seconds = sharded_seconds(job, cluster, s.workers, s.step, shards, s.gradients, s.micro)
    if name not in best or seconds < best[name].seconds:
      best[name] = speed(s, name, f"{shards} shards", seconds)
  return [*best.values()][:: -1 if cluster.network.untested(s.workers) else 1]


def tensor_parallel(job: Job, cluster: Cluster, settings: FamilySettings) -> list[Speed]:
  """Predict tensor parallelism with ZeRO-1 for sharded jobs whose global batch exceeds the usual one; else return [].

  A group of devices in a node splits each layer. If possible, there are at most as many groups as a usual batch has
  examples. Of the remaining group sizes, only the one with the fewest seconds per example is returned.
  """
  s, usual = settings, job.usual
  per_node = cluster.network.workers_per_node(s.workers)
  sizes = [2**i for i in range(1, per_node.bit_length()) if per_node % 2**i == 0 == s.workers % 2**i]
  if s.shards == 1 or not sizes or not usual or not usual.exceeded(s.workers * s.examples):
    return []
  speeds = [
    tensor_speed(job, cluster, s, size) for size in sizes if size == sizes[-1] or s.workers / size <= usual.examples
  ]
  return sorted((x for x in speeds if x), key=lambda x: x.seconds / x.batch)[:1]


def tensor_speed(job: Job, cluster: Cluster, settings: FamilySettings, size: int) -> Speed | None:
  """Predict the speed with tensor parallelism in groups of `size` devices; None if a group cannot hold a sequence."""
  s, device, network = settings, cluster.device, cluster.network.grouped(size)
  groups, form = s.workers // size, MIXED if device.width == 2 else SINGLE
  examples, count = job.usual.per_worker(groups) if job.usual else s.examples, params(job.table)
  room = device.usable * size - count * (form.weights + form.gradients + form.optimizer / groups)
  plain, again = (training_memory(job.table, form, recomputed=x).per_example for x in (False, True))
  recomputed = plain > room
  if again > room:
    return None
  micro = math.ceil(examples / (room // (again if recomputed else plain)))
  part, step = examples // micro, job.step
  if job.shares:
    step = device_step(job.table, device, job.shares, recomputed=float(recomputed), split=s.workers).parts
  computing = device.start + (step_seconds(step, part, device, cluster.efficiency) - device.start) / size
  blocks = [layer for layer in job.table if isinstance(layer, Attention)]
  sent = sum(collectives.all_reduce(layer.activations * part * device.width, size, cluster.network) for layer in blocks)
  inside = computing + (6 if recomputed else 4) * sent
  scatter = collectives.one_way("reduce_scatter", message_bytes(job.params_bytes, s.gradients), groups, network)
  gather = collectives.one_way("all_gather", device.width * count, groups, network)
  hidden = inside if cluster.overlap else 0.0
  seconds = micro * inside + max(0.0, scatter - 2 / 3 * hidden) + max(0.0, gather - hidden / 3)
  batch, name = groups * part * micro, f"groups of {size}, {pluralize(part * micro, 'example')} each"
  return Speed("tensor_zero1", name, seconds, micro * computing / seconds, batch / seconds, 0, batch, micro)


def between_islands(job: Job, cluster: Cluster, settings: FamilySettings, share: float) -> list[Speed]:
  """Predict the speeds of hierarchical SGD, DiLoCo and Streaming DiLoCo, which average models between islands.

  share: the largest share of a round of hierarchical SGD spent waiting.
  """
  s, partition = settings, islands(cluster, settings.workers)
  if s.workers == 1 or partition.members < s.shards:
    return []
  step, message = inside_seconds(job, partition, s), partition.message_seconds(s.params_bytes)
  count = f"{partition.count} {partition.kind}"
  periods = {"diloco": DILOCO}
  if partition.members > 1:
    periods = {"hierarchical_sgd": smallest_period(message, step, share=share)} | periods
  speeds = [
    speed(s, name, f"{count}, period {period}", averaged(step, message, period), period)
    for name, period in periods.items()
  ]
  seconds, delay = streaming(step, partition.message_seconds, s.params_bytes, overlap=cluster.overlap)
  setting = f"{count}, period {STREAMING}, {FRAGMENTS} fragments, int8, delay {delay}"
  return [*speeds, speed(s, "streaming_diloco", setting, seconds, STREAMING)]


def inside_seconds(job: Job, partition: Islands, settings: FamilySettings) -> float:
  """Return the seconds of a step of synchronous (if necessary, sharded) SGD inside an island."""
  s = settings
  if s.shards > 1:
    return sharded_seconds(job, partition.inside, partition.members, s.step, partition.members, s.gradients, s.micro)
  return synchronous_seconds(job, partition.inside, partition.members, s.examples, s.gradients, s.micro)


def averaging(settings: FamilySettings, cluster: Cluster) -> list[Speed]:
  """Predict the speeds of local SGD and DaSGD by closed forms. Messages are in float32."""
  s, speeds = settings, list[Speed]()
  average = collectives.all_reduce(s.params_bytes, s.workers, cluster.network)
  for name, period, delay in (("local_sgd", s.local_period, 0), ("dasgd", s.period, s.delay)):
    hidden = delay if cluster.overlap else 0
    seconds = round_seconds(step=s.step, message=average, period=period, delay=hidden) / period
    speeds.append(speed(s, name, f"period {period}, delay {delay}", seconds, max(period, delay)))
  return speeds
