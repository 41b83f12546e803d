"""Image-classification sets of tensorflow-datasets, without TensorFlow: array_record files, read with grain.

Nothing is downloaded. Most sets need TensorFlow only for their preparation: the error message for a set that is not
prepared shows a command to run on a machine with network access; then copy the folder.
"""

import copy
from typing import Any

import numpy as np

from ddl.api import Data, Source
from ddl.data import augmentation, checks, source
from ddl.data.image_folder import encoded
from ddl.errors import OptionError, first_line, nearest
from ddl.ranges import Fraction, NonNegativeInt, checked

PIECE = 32  # records that a thread reads at a time


@checked
def tfds(
  *,
  dataset: str = "mnist",
  data_dir: str = "",
  train_split: str = "train",
  test_split: str = "test",
  validation: Fraction = 0.0,
  size: NonNegativeInt = 0,
  augment: str = "none",
  normalize: str = "unit",
) -> Data:
  """Read images of tensorflow-datasets: x [height, width, channels] float32 in [-1, 1], decoded at each `take`.

  Args:
    dataset: a name in tensorflow-datasets, such as "mnist" or "name/config:version".
    data_dir: the folder of prepared data sets; "": ~/tensorflow_datasets.
    train_split: split to train on; slices such as "train[:50%]" work.
    test_split: split to test on ("validation" in sets that publish no test labels).
    validation: share of the training examples to use for validation.
    size: side in pixels to which an image's central square is resized; 0: no resizing, so all images must have the same
      size.
    augment: see `ddl.data.augmentation`; with resized_crop and a size, training uses random crops of the whole images,
      and tests use the central square whose side is 7/8 of the image's shorter side.
    normalize: see `ddl.data.augmentation`.
  """
  import tensorflow_datasets

  augmentation.check_names(augment, normalize)
  builder = _builder(dataset, data_dir)
  records = [(split, _records(builder, dataset, split)) for split in (train_split, test_split)]
  image, label = _keys(builder.info, dataset)
  channels = (builder.info.features[image].shape or (3,))[-1]
  train, test = (
    _source(records, image, label, f"split {split!r} of {dataset}", size, channels, augment == "resized_crop")
    for split, records in records
  )
  classes, version = builder.info.features[label].num_classes, tensorflow_datasets.__version__
  sizes = f"{train.size:,} examples of {train_split} and {test.size:,} of {test_split}"
  description = f"{builder.info.full_name} of tensorflow-datasets {version}, {sizes}"
  data = source.classification(train, test, num_outputs=classes, description=description, validation=validation)
  return augmentation.preprocessed(data, augment, normalize)


def _builder(dataset: str, data_dir: str) -> Any:
  import tensorflow_datasets

  try:
    return tensorflow_datasets.builder(dataset, data_dir=data_dir or None)
  except tensorflow_datasets.core.DatasetNotFoundError as error:
    known = tensorflow_datasets.list_builders(with_community_datasets=False)
    condition = f"a data set of tensorflow-datasets, or one in {data_dir or 'its data folder'}"
    raise OptionError("config.data.dataset", condition, repr(dataset), nearest(dataset, known)) from error
  except Exception as error:  # a wrong version or configuration: AssertionError, ValueError
    raise ValueError(f"tensorflow-datasets cannot load {dataset!r}: {first_line(error)}") from error


def _records(builder: Any, dataset: str, split: str) -> Any:
  """Return the records of a split, decoded on access."""
  try:
    return builder.as_data_source(split)
  except Exception as error:
    folder, root = builder.data_path, str(builder.data_path).rsplit(f"/{builder.name}/", 1)[0]
    # `tfds build` of tensorflow-datasets 4.9 does not start without apache-beam.
    call = f'tfds.builder("{dataset}", data_dir="{root}", file_format="array_record").download_and_prepare()'
    command = f"python -c 'import tensorflow_datasets as tfds; {call}'"
    needs = f"in an environment with tensorflow, importlib_resources and network access: {command}"
    if not builder.is_prepared():
      raise OptionError(dataset, f"prepared in {root}", advice=f"To prepare it, run this command {needs}") from error
    if isinstance(error, NotImplementedError):  # only TensorFlow reads this file format
      wrong = f"{folder}, which is in {builder.info.file_format.value} format"
      raise OptionError(
        dataset, "prepared in array_record format", wrong, f"Delete it, and run this command {needs}"
      ) from error
    splits = f"one of {', '.join(builder.info.splits)} (or a slice of one)"
    raise OptionError(f"split of {dataset}", splits, repr(split), f"Cause: {first_line(error)}") from error


def _keys(info: Any, dataset: str) -> tuple[str, str]:
  """Return the record keys of the image and the class."""
  from tensorflow_datasets import features

  keys = info.supervised_keys or ("image", "label")
  if len(keys) == 2 and all(key in info.features for key in keys):
    image, label = (info.features[key] for key in keys)
    if isinstance(image, features.Image) and isinstance(label, features.ClassLabel):
      dtype: Any = image.np_dtype
      if dtype != np.uint8:
        raise OptionError(f"images of {dataset}", "uint8", np.dtype(dtype))
      return keys
  raise OptionError(dataset, "an image-classification data set", f"the features {', '.join(info.features)}")


def _source(records: Any, image: str, label: str, where: str, size: int, channels: int, crops: bool) -> Source:
  import grain
  from tensorflow_datasets import decode

  def read(records: Any, indices: np.ndarray, key: str) -> list[np.ndarray]:
    # Read in pieces, as passing a single record to a thread costs more than decoding a small image.
    pieces = [indices[start : start + PIECE].tolist() for start in range(0, len(indices), PIECE)]
    in_order = grain.MapDataset.source(pieces).map(records.__getitems__).to_iter_dataset()  # read by grain's threads
    with checks.readable(where):  # a missing, truncated or damaged file: RuntimeError, IndexError
      return [record[key] for piece in in_order for record in piece]

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": source.stacked(read(records, indices, image), lambda _: where), "y": labels[indices]}

  undecoded = copy.copy(records)
  undecoded.decoders = {image: decode.SkipDecoding()}  # read only the classes, without decoding images
  labels = np.array(read(undecoded, np.arange(len(records)), label), np.int32)
  if not len(labels) or labels.min() < 0:
    raise OptionError(
      where, "a split with class labels", "examples without a label (-1)" if len(labels) else "no examples"
    )
  if size:
    return encoded(lambda index: undecoded[index][image], labels, lambda _: where, size, channels, crops)
  take(np.arange(min(PIECE, len(labels))))  # detect different sizes before training
  return Source(len(labels), take, labels)
