"""Synchronous SGD: gradients of each step in some number format, which leave layer by layer as they appear.

With k microbatches (gradient accumulation) the gradients leave in the last one alone:
T = (k - 1) T_step(b) + T_sync(b), b examples of a microbatch.
"""

from ddl.perf import patterns
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import step_seconds
from ddl.perf.patterns import Op, Pattern
from ddl.perf.planning import formats, scenario
from ddl.perf.planning.batch import Job

RANK = 4  # of PowerSGD


def seconds(job: Job, cluster: Cluster, workers: int, examples: float, name: str = "float32", micro: int = 1) -> float:
  """Seconds of a step whose gradients are sent in a format of FORMATS.

  Args:
    examples: of a worker's step, in all its microbatches.
    micro: number of microbatches.

  Raises:
    ValueError: for an unknown format, or as `ddl.perf.collectives`.
  """
  part = examples / micro
  alone = step_seconds(job.step, part, cluster.device, cluster.efficiency)
  if workers == 1:
    return micro * alone
  sent = Op("all_reduce", formats.message_bytes(job.params_bytes, name))
  run = scenario.Scenario(
    Pattern(local=(sent,)), scenario.work_of(job.step, job.params_bytes), cluster, workers, part,
    scenario.Transport(overlap=cluster.overlap),
  )  # fmt: skip
  together = scenario.seconds_and_waiting(run)[0]
  return (micro - 1) * alone + together + formats.encode_seconds(job.params_bytes, name, cluster.device)


def powersgd_seconds(job: Job, cluster: Cluster, workers: int, examples: float, micro: int = 1) -> float:
  """Seconds of a step whose gradients are compressed by PowerSGD; the job has a table.

  Nothing is overlapped: compression takes the device's time, and is faster after the backward pass (arXiv 2103.00543).
  """
  alone = micro * step_seconds(job.step, examples / micro, cluster.device, cluster.efficiency)
  encode = formats.powersgd_encode_seconds(job.table, job.params_bytes, cluster.device)
  return alone + encode + patterns.seconds(formats.powersgd(job.table, RANK), workers, cluster.network)
