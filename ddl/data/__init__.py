"""The data sets by name. A new one is a file in `images/`, `language/` or beside this one, and its line here.

The keyword-only arguments of a factory are its settings, so all have plain types and defaults. What is slow to
import (scikit-learn, grain, tensorflow-datasets) is imported where it is used: every command pays for start-up.
"""

from collections.abc import Callable

from ddl.api import Data
from ddl.data import least_squares, synthetic
from ddl.data.images import digits, idx, image_folder, npz, tfds
from ddl.data.language import text, tokens

DATA: dict[str, Callable[..., Data]] = {
  "digits": digits.digits,
  "npz": npz.npz,
  "idx": idx.idx,
  "image_folder": image_folder.image_folder,
  "text": text.text,
  "tokens": tokens.tokens,
  "tfds": tfds.tfds,
  "least_squares": least_squares.least_squares,
  "synthetic": synthetic.synthetic,
}
