"""The registry of data sets. To add a data set, add a file to this folder and a line here.

The keyword-only arguments of a factory are its settings. Factories raise FileNotFoundError or ValueError for invalid
files and settings; `take` also raises them for damaged images and invalid tokens. Slow libraries are imported lazily.
"""

from collections.abc import Callable

from ddl.api import Data
from ddl.data import hugging_face, image_arrays, image_folder, synthetic, tfds, tokens

DATA: dict[str, Callable[..., Data]] = {
  "digits": image_arrays.digits,
  "npz": image_arrays.npz,
  "idx": image_arrays.idx,
  "image_folder": image_folder.image_folder,
  "text": tokens.text,
  "tokens": tokens.tokens,
  "tfds": tfds.tfds,
  "hugging_face": hugging_face.hugging_face,
  "least_squares": synthetic.least_squares,
  "synthetic": synthetic.synthetic,
}
