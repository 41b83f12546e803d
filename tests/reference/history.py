"""The result of a NumPy reference of a collective algorithm."""

from typing import NamedTuple

import numpy as np


class History(NamedTuple):
  """The state after each step."""

  params: np.ndarray  # [steps, workers, n]
  evaluate: np.ndarray  # [steps, n]
