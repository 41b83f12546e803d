"""What a larger global batch costs in convergence: the critical batch, where it is known.

McCandlish, Kaplan, Amodei et al. 2018, arXiv 1812.06162, with B of the global batch, B_c of the critical one, which the
gradient noise scale B_simple of a run estimates: to the same loss
steps = S_min (1 + B_c / B),   examples = E_min (1 + B / B_c),   E_min = B_c S_min.
Tuned learning rates are meant. Where B_c is not known, a usual batch stands for the largest that has been shown to cost
nothing in a job of the kind.
"""

from typing import NamedTuple

from ddl.perf import checks


class Usual(NamedTuple):
  """A global batch that is known to cost nothing or little."""

  examples: int
  source: str


IMAGES = Usual(8192, "ResNet-50 on ImageNet lost nothing up to 8,192 (Goyal et al. 2017, arXiv 1706.02677)")


LANGUAGE = (  # parameters below which, tokens of a step, source
  (3e9, 480 * 1024, "GPT-2 124M trains with 491,520 tokens a step (nanoGPT, config/train_gpt2.py)"),
  (float("inf"), 4_000_000, "Llama 2 of 7B to 70B trained with 4 million tokens a step (arXiv 2307.09288)"),
)


def of_language(params: float, length: int) -> Usual:
  """The usual batch of a language model in sequences of so many tokens."""
  tokens, source = next((tokens, source) for below, tokens, source in LANGUAGE if params < below)
  return Usual(max(1, tokens // length), source)


def examples_factor(batch: float, critical: float) -> float:
  """1 + B / B_c: examples to a loss, over those that ever smaller batches need."""
  return 1 + checks.positive("batch", batch) / checks.positive("critical batch", critical)


def seconds_factor(batch: float, critical: float, step: float) -> float:
  """(1 / B + 1 / B_c) T: seconds to a loss over E_min, of steps of T seconds."""
  return checks.positive("step (s)", step) * examples_factor(batch, critical) / batch
