"""Small data files for the tests, and an assertion about error messages."""

import gzip
import json
import struct

import numpy as np
import pytest


def one_line(kind, call, *words):
  """Assert that `call` raises `kind` with a message of one line that contains these words."""
  with pytest.raises(kind) as error:
    call()
  message = str(error.value)
  assert "\n" not in message and all(word in message for word in words), message


def everything(part):
  """Take all examples of a source."""
  return part.take(np.arange(part.size))


def write_npz(folder, **arrays):
  np.savez(folder / "set.npz", **arrays)
  return str(folder / "set.npz")


def examples(size, shape=(5, 4), seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, (size, *shape), dtype=np.uint8), rng.integers(0, 3, size, dtype=np.uint8)


def idx_bytes(array, magic=None):
  return struct.pack(f">I{array.ndim}I", magic or 0x0800 + array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, dot=False, zipped=False):
  parts = {"train": examples(20), "t10k": examples(8, seed=1)}
  for name, (images, labels) in parts.items():
    for kind, array in (("images", images), ("labels", labels)):
      file = f"{name}-{kind}{'.' if dot else '-'}idx{array.ndim}-ubyte" + (".gz" if zipped else "")
      content = idx_bytes(array)
      (folder / file).write_bytes(gzip.compress(content) if zipped else content)
  return parts


def write_tokens(folder, train, test, dtype="uint16", **meta):
  """Write train.bin and val.bin, and meta.json if it has content."""
  folder.mkdir(exist_ok=True)
  for name, tokens in (("train", train), ("val", test)):
    (folder / f"{name}.bin").write_bytes(np.asarray(tokens).astype(dtype).tobytes())
  if meta or dtype != "uint16":
    (folder / "meta.json").write_text(json.dumps({"dtype": dtype, **meta}))
  return str(folder)
