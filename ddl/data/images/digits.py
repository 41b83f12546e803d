"""Handwritten digits that scikit-learn ships, without a download.

Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI machine learning repository: 8 x 8
images whose pixels count from 0 to 16.
"""

import numpy as np

from ddl.api import Data
from ddl.data import source
from ddl.ranges import Fraction, checked


@checked
def digits(*, validation: Fraction = 0.0) -> Data:
  """1,797 images, x: [8, 8, 1] float32 in [0, 1]; a fixed shuffled stratified split into 1,437 and 360 (test)."""
  from sklearn.datasets import load_digits
  from sklearn.model_selection import train_test_split

  images, labels = load_digits(return_X_y=True)
  x = np.asarray(images / 16, np.float32).reshape(-1, 8, 8, 1)
  y = np.asarray(labels, np.int32)
  train, test = train_test_split(np.arange(len(x)), test_size=360, stratify=y, random_state=0)
  everything = source.in_memory(x, y, y)
  return source.classification(
    source.subset(everything, np.asarray(train)),
    source.subset(everything, np.asarray(test)),
    num_outputs=10,
    description="1,797 handwritten digits of 8 x 8 pixels (UCI, Alpaydin and Kaynak 1998), from scikit-learn",
    validation=validation,
  )
