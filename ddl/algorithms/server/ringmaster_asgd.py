"""Ringmaster ASGD."""

from typing import Any

import optax

from ddl.algorithms.server.staleness_aware_sgd import AwareServer, staleness_aware_sgd
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, at_step, descend, select
from ddl.ranges import ByWorkers, PositiveInt, checked

THRESHOLD: Any = ByWorkers("p", lambda p: p)


@checked
def ringmaster_asgd(
  inner: optax.GradientTransformation, *, threshold: PositiveInt = THRESHOLD, workers: PositiveInt
) -> ServerAlgorithm:
  """Ignore gradients that are R or more updates old, and apply all others on arrival (Ringmaster ASGD).

  z <- z + inner(g) if delta < R, one worker's g at a time; x_i <- z

  Maranjyan, Tyurin, Richtarik 2025, arXiv 2501.16168. This is the variant that lets workers finish stale gradients,
  without stopping them. The delay delta is the number of updates of z since the worker's last reply; an ignored
  gradient is not an update. If a worker is so slow that its gradients are always ignored, its data has no influence.
  With R = infinity this is async SGD. A worker sends a gradient and receives a model per step. The evaluated model is
  z.

  Args:
    inner: the server's optimizer, with one state for all workers; its schedules depend on the sending worker's step.
    threshold: smallest delay with which a gradient is ignored (R); by default p, which workers of equal mean speed
      reach only if their step times vary. The paper's optimum depends on the gradient noise and the target accuracy;
      the authors tune it over 1, 2, 4, 8, 16.
    workers: number of workers (p).
  """
  rule = staleness_aware_sgd(inner, workers=workers)  # counts versions in the same way, but divides steps

  def serve(server: AwareServer, message: Tree, visit: Visit) -> tuple[AwareServer, Tree]:
    applies = server.version - server.pulled[visit.worker] < threshold  # delta < R
    stepped = descend(inner, message, at_step(server.inner, visit.step), server.center)  # z <- z - eta g
    center, inner_state = select(applies, stepped, (server.center, server.inner))
    after = AwareServer(center, inner_state, server.version + applies.astype(server.version.dtype), server.pulled)
    assert rule.read
    return rule.read(after, center, visit)

  return rule._replace(serve=serve)


SPEC = Spec(
  factory=ringmaster_asgd,
  title="Ringmaster ASGD (ignores stale gradients)",
  citation="Maranjyan et al. 2025, arXiv 2501.16168",
  taxonomy=Taxonomy("data", "centralized", "bounded", "parameter server", "gradients"),
  symbols={"threshold": "R"},
)
