"""What a label's runs came to: how much of the budget, whether they diverged, and which labels have the same runs."""

from typing import Any

import numpy as np

from ddl.report import formats
from ddl.report.reader import Result, Run

DETERMINED = ("step", "examples", "train_loss", "test_loss", "test_accuracy", "distance")  # by the computation alone


def fingerprint(result: Result) -> tuple[Any, ...]:
  """What labels have in common whose runs are the same, as those of one worker are with any period; () without any.

  All evaluations count: that two algorithms agree in the last one alone may be chance, and is a result.
  """
  return tuple((run.name, *(run.columns[name].tobytes() for name in DETERMINED)) for run in result.runs)


def shares(result: Result, run: Run) -> np.ndarray:
  """Return the steps of a run as shares of its label's budget."""
  return run.columns["step"] / result.info["settings"]["steps"]


def problem(run: Run, metric: str, short: bool) -> str | None:
  """Why a run has no final figure; short: whether it used less than the budget."""
  if np.isnan(run.columns[metric]).all():
    return f"has no {formats.NAMES[metric]}"
  steps = run.columns["step"]
  # The first line stands before training and has no training loss.
  bad = ~np.isfinite(run.columns[metric]) | (~np.isfinite(run.columns["train_loss"]) & (steps > 0))
  if bad.any():
    return f"diverged at step {steps[np.argmax(bad)]:,.0f}"
  return f"stopped at step {steps[-1]:,.0f}" if short else None
