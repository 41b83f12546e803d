"""The data sets by name. A new one is a file in this folder and a line here.

The keyword-only arguments of a factory are its settings. Invalid files and settings raise FileNotFoundError or
ValueError, damaged images and tokens beyond the vocabulary also from `take`. Slow libraries are imported on use.
"""

from collections.abc import Callable

from ddl.api import Data
from ddl.data import image_arrays, image_folder, synthetic, tfds, tokens

DATA: dict[str, Callable[..., Data]] = {
  "digits": image_arrays.digits,
  "npz": image_arrays.npz,
  "idx": image_arrays.idx,
  "image_folder": image_folder.image_folder,
  "text": tokens.text,
  "tokens": tokens.tokens,
  "tfds": tfds.tfds,
  "least_squares": synthetic.least_squares,
  "synthetic": synthetic.synthetic,
}
