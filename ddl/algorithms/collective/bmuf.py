"""BMUF, blockwise model-update filtering."""

from typing import Any

import optax

from ddl.algorithms.collective.diloco import diloco_with
from ddl.api import Algorithm, Spec, Taxonomy
from ddl.ranges import ByWorkers, Momentum, OuterRate, Period, PositiveInt, checked

MOMENTUM: Any = ByWorkers("1 - 1 / p", lambda p: 1 - 1 / p)


@checked
def bmuf(
  inner: optax.GradientTransformation,
  *,
  period: Period = 12,
  block_learning_rate: OuterRate = 1.0,
  block_momentum: Momentum = MOMENTUM,
  nesterov: bool = True,
  workers: PositiveInt | None = None,
) -> Algorithm:
  """Average the models after each block of local steps and apply the change with momentum (BMUF).

  After every tau-th step Delta <- eta Delta + zeta (Wbar - W_g), W <- W + Delta, W_g <- W + eta Delta, x_i <- W_g;
  without Nesterov's form W_g <- W

  Chen & Huo 2016, ICASSP. Wbar is the mean of the workers' models x_i. This is DiLoCo with SGD of rate zeta and
  momentum eta as the outer optimizer. With zeta = 1 and eta = 0 it is local SGD. Along a constant direction, momentum
  scales steps by zeta / (1 - eta), which is the number of workers p by default. The evaluated model is W_g.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: local steps per block (tau), or a function of the round such as `ddl.qsr`.
    block_learning_rate: rate of the block updates (zeta), or an optax schedule of it; 1 in the paper.
    block_momentum: momentum of the block updates (eta); by default 1 - 1 / p, as in the paper.
    nesterov: whether the next block starts from W + eta Delta instead of W (NBM).
    workers: number of workers (p), for the default of `block_momentum`.
  """
  outer = optax.sgd(block_learning_rate, block_momentum, nesterov)
  if callable(block_learning_rate):  # Delta <- eta Delta + zeta_t G; optax.sgd would also apply zeta_t to older G
    outer = optax.chain(optax.scale_by_learning_rate(block_learning_rate), optax.trace(block_momentum, nesterov))
  return diloco_with(inner, outer, period=period)


SPEC = Spec(
  factory=bmuf,
  title="BMUF (blockwise model-update filtering)",
  citation="Chen & Huo 2016, ICASSP",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"period": "tau", "block_learning_rate": "zeta", "block_momentum": "eta", "nesterov": "NBM"},
)
