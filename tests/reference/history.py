"""What a NumPy reference of a collective algorithm gives back."""

from typing import NamedTuple

import numpy as np


class History(NamedTuple):
  """What each step left behind."""

  params: np.ndarray  # [steps, workers, n]
  evaluate: np.ndarray  # [steps, n]
