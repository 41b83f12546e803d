"""BMUF, blockwise model-update filtering: the average of a block of local steps is filtered by a block momentum.

Chen & Huo 2016, ICASSP (no arXiv id). After a block of tau local steps of each worker from the model W_g, with Wbar the
mean of the models: G = Wbar - W_g is the model update,
Delta <- eta Delta + zeta G,  W <- W + Delta,
and the next block starts from W_g = W (classical block momentum) or W_g = W + eta Delta (Nesterov's).
This is DiLoCo with the outer optimizer SGD: its outer gradient is -G, its rate zeta and its momentum eta. Of Nesterov's
form optax, too, holds the point W_g that is looked ahead to: W_g <- W_g + zeta G + eta Delta.
"""

import optax

from ddl.algorithms.collective.outer.diloco import diloco_with
from ddl.api import Algorithm, Hyper, Spec, Taxonomy
from ddl.ranges import Momentum, NonNegativeFloat, PositiveInt, checked


@checked
def bmuf(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt,
  block_learning_rate: NonNegativeFloat,
  block_momentum: Momentum,
  nesterov: bool,
) -> Algorithm:
  """Delta <- eta Delta + zeta (Wbar - W_g); W <- W + Delta; W_g <- W or W + eta Delta; x_i <- W_g, each tau steps.

  A rate of 1 without momentum is local SGD. In a steady direction steps become zeta / (1 - eta) times as long: with the
  authors' choice, zeta = 1 and eta = 1 - 1 / p, as long as the p workers' steps together.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: local steps per block (tau).
    block_learning_rate: zeta.
    block_momentum: eta.
    nesterov: whether the next block starts from W + eta Delta instead of W.

  Returns:
    An `Algorithm` that sends differences once per block, tested at W_g.
  """
  return diloco_with(inner, optax.sgd(block_learning_rate, block_momentum, nesterov), period=period)


SPEC = Spec(
  factory=bmuf,
  title="BMUF (blockwise model-update filtering)",
  citation="Chen & Huo 2016, ICASSP",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  hyper={
    "period": Hyper("tau", 12, "local steps per block"),
    "block_learning_rate": Hyper("zeta", 1.0, "rate of the block updates; the authors' choice is 1"),
    "block_momentum": Hyper("eta", lambda workers: 1 - 1 / workers, "momentum of the blocks; the authors: 1 - 1 / p"),
    "nesterov": Hyper("NBM", True, "Nesterov block momentum, in place of the classical one"),
  },
)
