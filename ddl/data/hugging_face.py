"""Image-classification sets of Hugging Face's library `datasets`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files
from ddl.api import Data, Source
from ddl.data import augmentation, checks, source
from ddl.data.image_folder import encoded
from ddl.errors import OptionError
from ddl.ranges import Fraction, NonNegativeInt, checked

IMAGES, LABELS = ("image", "img", "pixel_values", "x"), ("label", "labels", "y")  # columns, if types do not decide
INSTALL = "Run `pip install datasets`."


@checked
def hugging_face(
  *,
  dataset: str = "",
  train_split: str = "train",
  test_split: str = "test",
  validation: Fraction = 0.0,
  size: NonNegativeInt = 0,
  augment: str = "none",
  normalize: str = "unit",
) -> Data:
  """Read an image-classification set of Hugging Face's library: x [height, width, channels] float32.

  Args:
    dataset: a folder written by `save_to_disk`, or a name on the Hugging Face Hub, such as "ylecun/mnist".
    train_split: split to train on.
    test_split: split to test on.
    validation: share of the training examples to use for validation.
    size: side in pixels to which an image's central square is resized; 0: no resizing, so all images must have the same
      size.
    augment: see `ddl.data.augmentation`; with resized_crop and a size, training uses random crops of the whole images,
      and tests use the central square whose side is 7/8 of the image's shorter side.
    normalize: see `ddl.data.augmentation`.
  """
  try:
    import datasets
  except ImportError as error:
    raise OptionError("datasets", "installed for config.data.name=hugging_face", advice=INSTALL) from error
  if not dataset:
    raise OptionError(
      "config.data.dataset", "a folder written by save_to_disk, or a name on the Hugging Face Hub", "''"
    )
  folder = files.local(dataset)
  with checks.readable(f"config.data.dataset={dataset}"):
    splits = datasets.load_from_disk(str(folder)) if folder.is_dir() else datasets.load_dataset(dataset)
  return from_hugging_face(
    splits, train_split=train_split, test_split=test_split, validation=validation, size=size, augment=augment,
    normalize=normalize,
  )  # fmt: skip


@checked
def from_hugging_face(
  dataset: Any,
  *,
  train_split: str = "train",
  test_split: str = "test",
  validation: Fraction = 0.0,
  size: NonNegativeInt = 0,
  augment: str = "none",
  normalize: str = "unit",
) -> Data:
  """Create a data set from a `datasets.DatasetDict` or `Dataset`; a sixth of a `Dataset` is the test set.

  The images are in the column of type `Image`, or in a column of arrays [height, width(, channels)] called image, img,
  pixel_values or x. The classes are in the column of type `ClassLabel`, or in a column of integers called label, labels
  or y. For the arguments see `hugging_face`.
  """
  augmentation.check_names(augment, normalize)
  crops = augment == "resized_crop" and size > 0
  if not isinstance(dataset, Mapping):
    train, test = source.sixth(_source(dataset, "the data set", size, crops), "the data set")
    return _data([train, test], validation, augment, normalize, dataset)
  for name, split in (("train_split", train_split), ("test_split", test_split)):
    if split not in dataset:
      raise OptionError(f"config.data.{name}", f"one of {', '.join(dataset)}", repr(split))
  parts = [_source(dataset[split], f"split {split}", size, crops) for split in (train_split, test_split)]
  return _data(parts, validation, augment, normalize, dataset[train_split])


def is_dataset(value: Any) -> bool:
  """Return whether a value is a `Dataset` or `DatasetDict`, without importing `datasets`."""
  library = sys.modules.get("datasets")
  return library is not None and isinstance(value, library.Dataset | library.DatasetDict)


def _data(parts: list[Source], validation: float, augment: str, normalize: str, dataset: Any) -> Data:
  (train, test), name = parts, dataset.info.dataset_name or dataset.info.builder_name or "a data set"
  description = f"{train.size:,} + {test.size:,} examples of {name} (Hugging Face)"
  _, label = _columns(dataset)
  classes = getattr(dataset.features[label], "num_classes", None)
  data = source.classification(train, test, num_outputs=classes, description=description, validation=validation)
  return augmentation.preprocessed(data, augment, normalize)


def _columns(dataset: Any) -> tuple[str, str]:
  """Return the columns of the images and the classes. Raises OptionError unless there is exactly one of each."""
  import datasets

  features = dataset.features
  images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
  labels = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
  images = images or [name for name in IMAGES if name in features]
  labels = labels or [name for name in LABELS if name in features]
  if len(images) != 1 or len(labels) != 1:
    image, label = ", ".join(IMAGES), ", ".join(LABELS)
    condition = f"a data set with one Image column (or one of {image}) and one ClassLabel column (or one of {label})"
    raise OptionError("data", condition, f"the columns {', '.join(features)}", "Rename or remove columns first.")
  return images[0], labels[0]


def _source(dataset: Any, where: str, size: int, crops: bool) -> Source:
  import datasets

  image, label = _columns(dataset)
  labels = np.asarray(dataset[label][:])
  feature = dataset.features[image]
  if not isinstance(feature, datasets.Image):
    return source.labelled(np.asarray(dataset.with_format("numpy")[:][image]), labels, where)
  checks.class_numbers(labels, None, f"{where}: labels", int)
  rows = dataset.select_columns([image])
  first = rows[0][image]
  channels = 1 if first.mode in ("1", "L") else 3
  undecoded = rows.cast_column(image, datasets.Image(decode=False))

  def read(index: int) -> bytes:
    row = undecoded[index][image]
    return row["bytes"] or Path(row["path"]).read_bytes()

  return encoded(read, labels.astype(np.int32), lambda k: f"{where}, example {k}", size, channels, crops)
