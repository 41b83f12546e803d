"""Image-classification sets of tensorflow-datasets, without TensorFlow: array_record files, read through grain.

Nothing is downloaded here. Most sets need TensorFlow only for their preparation: prepare one where there is a network,
with the command that the error names, and copy its folder.
"""

import copy
import difflib
from typing import Any

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import augmentation, source
from ddl.data.image_folder import encoded
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
    dataset: a name of tensorflow-datasets, "mnist" or "name/config:version".
    data_dir: the folder of prepared data sets; "": ~/tensorflow_datasets.
    train_split: split to train on; slices such as "train[:50%]" work.
    test_split: split to test on ("validation" in sets that publish no test labels).
    validation: share of the training examples to set apart.
    size: side of the squares to which the images' central parts are resized; 0: all images have one size.
    augment: see `ddl.data.augmentation`; with resized_crop and a size, random parts of the whole images are resized for
      training, and 7/8 of the shorter side for tests.
    normalize: see `ddl.data.augmentation`.

  Raises:
    ValueError: for an unknown set, one that is not prepared as array_record (with the command that prepares it), an
      unknown split, or a set of other data than images with one class each; also from `take`, if images differ in size.
  """
  import tensorflow_datasets

  augmentation.check_names(augment, normalize)
  builder = _builder(dataset, data_dir)
  records = [(split, _records(builder, dataset, split)) for split in (train_split, test_split)]
  image, label = _keys(builder.info, dataset)
  channels = (builder.info.features[image].shape or (3,))[-1]
  train, test = (
    _source(records, image, label, f"{dataset}, split {split!r},", size, channels, augment == "resized_crop")
    for split, records in records
  )
  num_outputs = builder.info.features[label].num_classes
  data = source.classification(
    train,
    test,
    num_outputs=num_outputs,
    description=f"{builder.info.full_name} of tensorflow-datasets {tensorflow_datasets.__version__}, "
    f"{train.size:,} examples of {train_split} and {test.size:,} of {test_split}",
    validation=validation,
  )
  return augmentation.preprocessed(data, augment, normalize)


def _builder(dataset: str, data_dir: str) -> Any:
  import tensorflow_datasets

  try:
    return tensorflow_datasets.builder(dataset, data_dir=data_dir or None)
  except tensorflow_datasets.core.DatasetNotFoundError as error:
    known = tensorflow_datasets.list_builders(with_community_datasets=False)
    nearest = difflib.get_close_matches(dataset, known)
    raise ValueError(
      f"tensorflow-datasets knows no set {dataset!r}, and {data_dir or 'its data folder'} holds none of that name"
      + (f"; the nearest are {', '.join(nearest)}" if nearest else "")
    ) from error
  except Exception as error:  # a wrong version or configuration: AssertionError, ValueError
    raise ValueError(f"tensorflow-datasets cannot load {dataset!r}: {_line(error)}") from error


def _records(builder: Any, dataset: str, split: str) -> Any:
  """Return the records of a split, decoded on access."""
  try:
    return builder.as_data_source(split)
  except Exception as error:
    folder, root = builder.data_path, str(builder.data_path).rsplit(f"/{builder.name}/", 1)[0]
    # Not `tfds build`: that program of tensorflow-datasets 4.9 does not start without apache-beam.
    call = f'tfds.builder("{dataset}", data_dir="{root}", file_format="array_record").download_and_prepare()'
    command = f"python -c 'import tensorflow_datasets as tfds; {call}'"
    needs = "where Python has tensorflow and importlib_resources, and a network,"
    if not builder.is_prepared():
      raise ValueError(f"{dataset} is not prepared in {root}; {needs} run: {command}") from error
    if isinstance(error, NotImplementedError):
      wrong = f"{folder} holds {dataset} as {builder.info.file_format.value}, which only TensorFlow reads"
      raise ValueError(f"{wrong}; delete that folder, and {needs} run: {command}") from error
    raise ValueError(
      f"cannot read split {split!r} of {dataset}, whose splits are {', '.join(builder.info.splits)}: {_line(error)}"
    ) from error


def _keys(info: Any, dataset: str) -> tuple[str, str]:
  """Return the names of the image and of the class in a record."""
  from tensorflow_datasets import features

  keys = info.supervised_keys or ("image", "label")
  if len(keys) == 2 and all(key in info.features for key in keys):
    image, label = (info.features[key] for key in keys)
    if isinstance(image, features.Image) and isinstance(label, features.ClassLabel):
      dtype: Any = image.np_dtype
      if dtype != np.uint8:
        raise ValueError(f"{dataset} has {np.dtype(dtype)} images; only uint8 images can be read")
      return keys
  raise ValueError(f"{dataset} is not an image-classification set: its features are {', '.join(info.features)}")


def _source(records: Any, image: str, label: str, where: str, size: int, channels: int, crops: bool) -> Source:
  import grain
  from tensorflow_datasets import decode

  def read(records: Any, indices: np.ndarray, key: str) -> list[np.ndarray]:
    # Pieces, because handing each record over to a thread costs more than decoding a small image.
    pieces = [indices[start : start + PIECE].tolist() for start in range(0, len(indices), PIECE)]
    in_order = grain.MapDataset.source(pieces).map(records.__getitems__).to_iter_dataset()  # by grain's threads
    try:
      return [record[key] for piece in in_order for record in piece]
    except Exception as error:  # a missing, cut off or damaged file: RuntimeError, IndexError
      raise ValueError(f"{where} cannot be read: {_line(error)}; prepare the set again") from error

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    images = read(records, indices, image)
    other = next((one.shape for one in images if one.shape != images[0].shape), None)
    if other:
      raise ValueError(
        f"{where} has images of differing sizes, as {images[0].shape} and {other}; config.data.size resizes them"
      )
    return {"x": source.pixels(np.stack(images)), "y": labels[indices]}

  undecoded = copy.copy(records)
  undecoded.decoders = {image: decode.SkipDecoding()}  # only the classes, without decoding each image
  labels = np.array(read(undecoded, np.arange(len(records)), label), np.int32)
  if not len(labels) or labels.min() < 0:
    raise ValueError(f"{where} has " + ("examples without a class (-1)" if len(labels) else "no examples"))
  if size:
    memory.require(4 * channels * size**2, f"an image of {size} x {size} pixels")
    return encoded(lambda index: undecoded[index][image], labels, lambda _: where, size, channels, crops)
  take(np.arange(min(PIECE, len(labels))))  # finds differing sizes before any training
  return Source(len(labels), take, labels)


def _line(error: Exception) -> str:
  return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
