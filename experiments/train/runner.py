"""The interface between the training loop and what makes the steps: compiled calls, threads or Ray."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from ddl.runtime.consensus import Consensus
from experiments.train.run_dir import RunFolder
from experiments.train.signals import StopRequest


class Report(NamedTuple):
  """The progress of a run, from time to time. Cumulative, but for the losses."""

  step: int  # that the workers have made, on average
  losses: np.ndarray  # of the steps since the last report
  nbytes: float  # sent and received by a worker, on average
  seconds: float  # of training: without compilation, evaluation and saving
  consensus: Callable[[], Consensus] | None = None  # the model of this step; None: the next steps are under way
  line: bool = False  # metrics are due
  save: bool = False  # a checkpoint is due
  visits: int | None = None  # to the server, in real time


class Runner(Protocol):
  """Makes the steps of one run, from its first or from a checkpoint."""

  layout: dict[str, Any]  # what a bit-exact resume depends on

  def open(self, folder: RunFolder, resume: bool) -> dict[str, Any] | None:
    """Load or initialise the model; return the figures that were saved with a checkpoint, None at step 0."""
    ...

  def run(self, figures: dict[str, Any], report: Callable[[Report], None], asked: StopRequest) -> int | None:
    """Make the remaining steps, and save them where that is due; return the step of an early stop.

    figures: kept up to date by `report`, to be saved with a checkpoint.

    Raises:
      NotFinite: for a loss or message that is not finite.
    """
    ...

  def kept(self) -> str:
    """Describe the newest checkpoint, for an error message."""
    ...

  def close(self) -> None:
    """End what was started, and wait for what is being saved."""
    ...
