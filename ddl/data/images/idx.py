"""The four idx files of MNIST and its kin (Fashion-MNIST, KMNIST, ...), as published.

An idx file is 0, 0, the type (8: uint8), the number of dimensions, each as a big-endian uint32, the bytes.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np

from ddl.api import Data, Source
from ddl.data import checks, source
from ddl.data.images import preprocessing


def idx(*, path: str = "", validation: float = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
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
  try:
    content = source.content(file)
    content = gzip.decompress(content) if file.suffix == ".gz" else content
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f"{file}: not readable: {error}") from error
  magic = bytes([0, 0, 8, ndim])
  if content[:4] != magic:
    raise ValueError(
      f"{file}: not an idx file of {ndim} dimensions of bytes: starts with {content[:4].hex()}, not {magic.hex()}"
    )
  header = 4 + 4 * ndim
  if len(content) < header:
    raise ValueError(f"{file}: truncated: {len(content)} bytes, where the header alone has {header}")
  shape = [int(size) for size in np.frombuffer(content, ">u4", ndim, offset=4)]
  expected = header + int(np.prod(shape, dtype=object))
  if len(content) != expected:
    raise ValueError(
      f"{file}: {len(content)} bytes, where the header says {shape}, so {expected}: truncated or not one file"
    )
  return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
