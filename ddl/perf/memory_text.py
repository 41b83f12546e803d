"""Describe the memory of a plan's step, and what would reduce it."""

import math

from ddl.names import pluralize
from ddl.perf.cluster import Cluster
from ddl.perf.device import USABLE
from ddl.perf.families import Speed, sharded_memory
from ddl.perf.layers import MIXED, Attention, StepMemory
from ddl.perf.placement import Job
from ddl.perf.plan import LANGUAGE, TrainingPlan
from ddl.perf.units import bytes_text, percent

SCORE = 5  # bytes stored per attention score without fused attention (arXiv 2205.05198)
MOST_MEMBERS = 11  # numbers of devices per worker that are considered: powers of two below 2 ** MOST_MEMBERS


def text(job: Job, result: TrainingPlan, cluster: Cluster) -> list[str]:
  """Describe the memory of a step and, if the config's microbatch does not fit, what would reduce it."""
  best, device = result.advised, cluster.device
  if best.algorithm == "tensor_zero1":
    return []
  memory = _step_memory(job, result, cluster, best)
  part = best.batch // result.workers // best.micro
  states = "optimizer states" if job.table else "other training state"
  activations = "recomputed activations" if job.recomputed else "activations"
  counted = (
    f"{bytes_text(memory.total(part))} of {bytes_text(device.memory)}, of which a step can use {percent(USABLE)}: "
    f"{bytes_text(memory.fixed)} for parameters, gradients and {states}, the rest for {activations} of "
    f"{pluralize(part, 'example')}."
  )
  if job.states:
    return [counted, _own_memory(job, result, cluster)]
  return [counted, *_savings(job, device.usable)]


def accumulated(job: Job, result: TrainingPlan, cluster: Cluster, speed: Speed) -> Speed:
  """Return `speed` with as many microbatches as a step of ddl's transformers needs; unchanged if no number fits."""
  if not job.states or speed.algorithm == "tensor_zero1":
    return speed
  return speed._replace(micro=_microbatches(job, result, cluster, speed) or speed.micro)


def _step_memory(job: Job, result: TrainingPlan, cluster: Cluster, speed: Speed) -> StepMemory:
  if speed.algorithm in ("fsdp", "hybrid_fsdp"):
    return sharded_memory(job, int(speed.setting.split()[0]), cluster.device.width)
  return result.memory


def _scores(job: Job) -> float:
  """Return the bytes of the attention scores that ddl's transformers store per example."""
  return SCORE * sum(layer.scores for layer in job.table if isinstance(layer, Attention))


def _more_states(speed: Speed) -> tuple[int, int]:
  """Return the fewest and the most bytes per parameter that ddl stores in addition to those of mixed precision."""
  return (10, 14) if speed.algorithm in LANGUAGE else (2, 6)  # DiLoCo stores two more copies


def _microbatches(job: Job, result: TrainingPlan, cluster: Cluster, speed: Speed) -> int:
  """Return the number of microbatches with which a step of ddl's transformers fits; 0 if it never does."""
  memory, each = _step_memory(job, result, cluster, speed), speed.batch // result.workers
  fixed = memory.fixed * (1 + _more_states(speed)[1] / MIXED.states)
  own = StepMemory(memory.per_example + _scores(job), fixed)
  counts = [count for count in range(speed.micro, each + 1) if each % count == 0]
  return next((count for count in counts if own.total(each // count) <= cluster.device.usable), 0)


def _own_memory(job: Job, result: TrainingPlan, cluster: Cluster) -> str:
  """Describe what else a step of ddl's transformers stores; "" if it fits."""
  best, (low, high) = result.advised, _more_states(result.advised)
  fits = _microbatches(job, result, cluster, best)
  if fits == best.micro:
    return ""
  scores = bytes_text(_scores(job))
  more = f"A step of ddl also stores {scores} of attention scores per example and {low} to {high} bytes per parameter"
  if fits:
    return f"{more}, so ddl needs --config.microbatches={fits}."
  return (
    f"{more}, which does not fit: the model needs fused attention (jax.nn.dot_product_attention with "
    "implementation='cudnn') or recomputation."
  )


def _savings(job: Job, limit: float) -> list[str]:
  """Describe what reduces the memory of a config whose microbatch does not fit in `limit` bytes."""
  needed, lines = job.memory.total(job.least), []
  if job.table or needed <= limit:
    return lines
  lines.append(f"The config's microbatch of {pluralize(job.least, 'example')} needs {bytes_text(needed)}.")
  if job.remat:
    before, after = (bytes_text(memory.per_example) for memory in (job.memory, job.remat()))
    most = math.floor((limit - job.remat().fixed) / job.remat().per_example)
    lines.append(
      f"--config.model.remat=True stores {after} instead of {before} per example, so that {max(0, most):,} "
      "examples fit, and computes most of the forward pass a second time."
    )
  members = next((2**i for i in range(1, MOST_MEMBERS) if needed <= 2**i * limit and job.least % 2**i == 0), 0)
  if members:
    lines.append(f"--members={members} shards the states and the examples of each worker over {members} devices.")
  return lines
