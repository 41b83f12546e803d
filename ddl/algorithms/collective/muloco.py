"""MuLoCo."""

import optax

from ddl.algorithms.collective.diloco import diloco
from ddl.api import Algorithm, Spec, Taxonomy
from ddl.ranges import Momentum, OuterRate, Period, checked


@checked
def muloco(
  inner: optax.GradientTransformation,
  *,
  period: Period = 30,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.6,
) -> Algorithm:
  """Average the local progress of Muon, and apply it with an outer Nesterov optimizer (MuLoCo).

  m <- mu m + Delta; theta <- theta - eta_out (Delta + mu m); x_i <- theta, after every H-th step

  Therien, Huang, Defazio, Rish, Belilovsky 2025, arXiv 2505.23725. This is `diloco` with Muon as the inner optimizer:
  the workers' changes point in more similar directions than with AdamW, so averaging loses less as the number of
  workers grows. With one worker it is `snoo` with Muon. In `inner`, use Muon only for hidden matrices: take `muon` of
  the config's optimizers, or optax.partition with `ddl.hidden_matrices`. `optax.contrib.muon` also orthogonalizes
  embeddings and the output layer, for which the authors use AdamW. Muon's momentum stays on its worker. The authors'
  code can also quantize Delta, which is omitted here. The evaluated model is theta.

  Args:
    inner: optimizer of each worker, Muon with AdamW for vectors, embeddings and the output layer; its state is neither
      averaged nor reset.
    period: local steps per outer step (H), or a function of the round such as `ddl.qsr`; 30 in the authors' code.
    outer_learning_rate: rate of the outer steps (eta_out), or an optax schedule of it; 0.7 in the authors' code.
    outer_momentum: Nesterov momentum of the outer steps (mu); 0.6 in the authors' code with one worker.
  """
  return diloco(inner, period=period, outer_learning_rate=outer_learning_rate, outer_momentum=outer_momentum)


SPEC = Spec(
  factory=muloco,
  title="MuLoCo (DiLoCo with Muon)",
  citation="Therien et al. 2025, arXiv 2505.23725",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"period": "H", "outer_learning_rate": "eta_out", "outer_momentum": "mu"},
  expects={"optimizer.name": ("muon", "with any other optimizer this is diloco with different defaults")},
)
