"""The four idx files of MNIST and its kin (Fashion-MNIST, KMNIST, ...), as published.

An idx file is 0, 0, the type (8: uint8), the number of dimensions, each as a big-endian uint32, the bytes.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import checks, source
from ddl.data.images import preprocessing
from ddl.ranges import Fraction, checked


@checked
def idx(*, path: str = "", validation: Fraction = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
  """A folder with {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, with or without .gz.

  x: [height, width, 1] float32 in [-1, 1], or as `augment` and `normalize` say (`ddl.data.images.preprocessing`).

  Raises:
    FileNotFoundError, ValueError: one line, for a file that is missing or malformed.
  """
  preprocessing.check_names(augment, normalize)
  folder = source.existing(path, "FOLDER (the one with train-images-idx3-ubyte or .gz)")
  train, test = (_part(folder, name) for name in ("train", "t10k"))
  checks.same_inputs(checks.sample(train), checks.sample(test), path, ("train", "t10k"))
  assert train.labels is not None and test.labels is not None
  data = source.classification(
    train,
    test,
    num_outputs=1 + int(max(train.labels.max(), test.labels.max())),
    description=f"{train.size:,} + {test.size:,} images from the idx files in {path}",
    validation=validation,
  )
  return preprocessing.preprocessed(data, augment, normalize)


def _part(folder: Path, name: str) -> Source:
  images = _read(_find(folder, f"{name}-images-idx3-ubyte"), 3)
  labels = _read(_find(folder, f"{name}-labels-idx1-ubyte"), 1)
  return source.labelled(images, labels, f"{folder}, {name}")


def _find(folder: Path, name: str) -> Path:
  for spelling in (name, name.replace("-idx", ".idx")):
    for suffix in ("", ".gz"):
      if (folder / (spelling + suffix)).is_file():
        return folder / (spelling + suffix)
  raise FileNotFoundError(f"{folder}: has no {name} (nor {name}.gz, nor {name.replace('-idx', '.idx')})")


def _read(file: Path, ndim: int) -> np.ndarray:
  """Return the array of a file, of which no more is unpacked than its header says."""
  magic, header = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
  try:
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as opened:
      head = opened.read(header)
      if head[:4] != magic:
        raise ValueError(
          f"{file}: not an idx file of {ndim} dimensions of bytes: starts with {head[:4].hex()}, not {magic.hex()}"
        )
      if len(head) < header:
        raise ValueError(f"{file}: truncated: {len(head)} bytes, where the header has {header}")
      shape = [int(size) for size in np.frombuffer(head, ">u4", ndim, offset=4)]
      expected = math.prod(shape)
      memory.require(expected * (5 if ndim > 1 else 1), str(file))  # images also as float32
      content = opened.read(expected + 1)
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f"{file}: not readable: {error}") from error
  if len(content) != expected:
    got = f"{header + len(content)} bytes" + " or more" * (len(content) > expected)
    raise ValueError(f"{file}: {got}, where the header says {shape}, so {header + expected}: truncated or not one file")
  return np.frombuffer(content, np.uint8).reshape(shape)
