"""Next-token prediction over files of token numbers, as nanoGPT has them, read from disk as they are needed.

A folder holds train.bin and val.bin, nothing but tokens of 16 or 32 bits in this machine's byte order, and maybe
meta.json, which says what they are: `python run.py tokenize` makes all three from a text.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files
from ddl.api import Data, Source
from ddl.data import source

TRAIN, TEST, META = "train.bin", "val.bin", "meta.json"
TYPES = ("uint16", "uint32")
MOST = 2**31  # tokens of a vocabulary: models take them as int32
PIECE = 2**22  # tokens that are looked at at a time
LOOKED_AT = 2**30  # bytes of a file at the start; the rest of a larger one is only seen in its batches


def tokens(
  *, path: str = "", length: int = 1024, vocabulary: int = 0, test_windows: int = 0, validation: float = 0.0
) -> Data:
  """Windows of train.bin, and for the test of val.bin: x [length] int32 and the tokens that follow, y [length] int32.

  Windows lie at stride `length`. The files are mapped into memory, so that they may be larger than it.

  Args:
    path: a folder with train.bin and val.bin; the tokens are uint16 unless its meta.json has "dtype": "uint32".
    length: tokens per example.
    vocabulary: number of tokens that there are; 0: as meta.json has it. GPT-2's is 50257.
    test_windows: number of windows, evenly spread over val.bin, that tests take; 0: all.
    validation: share of the training windows to set apart.

  Raises:
    FileNotFoundError, ValueError: one line, for files that are missing, damaged, too short or of another type, or
      tokens beyond the vocabulary; where a file is larger than 1 GiB, the latter also from `take`.
  """
  if length < 1 or test_windows < 0:
    raise ValueError(f"length={length}, test_windows={test_windows}; invalid: must be at least 1, and at least 0")
  folder = source.existing(path, f"FOLDER (the one with {TRAIN} and {TEST}, as `python run.py tokenize` writes)")
  if not folder.is_dir():
    raise ValueError(f"{path} is no folder; set --config.data.path to the one with {TRAIN} and {TEST}")
  meta = read_meta(folder)
  vocabulary = vocabulary or meta.get("vocabulary", 0)
  if not vocabulary:
    raise ValueError(
      f"{path}: nothing says how many tokens there are: set --config.data.vocabulary, of GPT-2's tokens 50257, or "
      f'write {folder / META}: {{"dtype": "uint16", "vocabulary": 50257}}'
    )
  dtype = np.dtype(meta.get("dtype", TYPES[0]))
  most = min(MOST, np.iinfo(dtype).max + 1)
  if not 0 < vocabulary <= most:
    other = f'; for tokens of uint32 write {folder / META}: {{"dtype": "uint32"}}' if most < MOST else ""
    raise ValueError(
      f"config.data.vocabulary is {vocabulary}; invalid: must be from 1 to {most:,} for tokens of {dtype}{other}"
    )
  train, test = (_windows(folder / name, dtype, length, vocabulary) for name in (TRAIN, TEST))
  if 0 < test_windows < test.size:
    test = source.subset(test, np.arange(test_windows) * test.size // test_windows)
  counts = " + ".join(f"{(folder / name).stat().st_size // dtype.itemsize:,}" for name in (TRAIN, TEST))
  train, held_out = source.split(train, validation)
  made_by = f" ({meta['tokenizer']})" if "tokenizer" in meta else ""
  description = f"{counts} tokens of {vocabulary:,} from {path}{made_by}"
  about = {"task": "language", "shape": (length,), "num_outputs": vocabulary, "description": description}
  return Data(train, test, about, held_out)


def read_meta(folder: Path) -> dict[str, Any]:
  """What meta.json says of "dtype", "vocabulary" and "tokenizer"; {} without one. ValueError for a damaged one."""
  file = folder / META
  if not file.exists():
    return {}
  try:
    meta = json.loads(source.content(file))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{file} is not readable as JSON: {error}; write it again, or delete it") from error
  wrong = "it must be an object" if not isinstance(meta, dict) else ""
  if not wrong and meta.get("dtype", TYPES[0]) not in TYPES:
    wrong = f'"dtype" must be {" or ".join(TYPES)}, not {meta["dtype"]!r}'
  if not wrong and not (type(count := meta.get("vocabulary", 1)) is int and 0 < count <= MOST):
    wrong = f'"vocabulary" must be a number of tokens, not {count!r}'
  if not wrong and not isinstance(meta.get("tokenizer", ""), str):
    wrong = '"tokenizer" must be a text'
  if wrong:
    raise ValueError(f"{file}: {wrong}; write it again, or delete it")
  return {key: meta[key] for key in ("dtype", "vocabulary", "tokenizer") if key in meta}


def _windows(file: Path, dtype: np.dtype, length: int, vocabulary: int) -> Source:
  """The windows of a file, none of which has a token beyond the vocabulary."""
  nbytes = files.regular(file).stat().st_size
  if nbytes % dtype.itemsize:
    raise ValueError(
      f"{file}: {nbytes:,} bytes are no tokens of {dtype}; invalid: must be a multiple of {dtype.itemsize}: it was cut "
      f"off, or {file.parent / META} should have another dtype"
    )
  count = nbytes // dtype.itemsize
  if count < length + 1:
    fits = f"use length={count - 1} or less, or a longer text" if count > 1 else "use a longer text"
    raise ValueError(f"{file}: {count:,} tokens hold no window of {length} + 1: {fits}")
  stored = np.memmap(file, dtype, "r")

  def check(some: np.ndarray) -> None:
    if (largest := int(some.max())) >= vocabulary:
      raise ValueError(
        f"{file}: has the token {largest:,}, but the vocabulary has {vocabulary:,}, counted from 0: set "
        f"--config.data.vocabulary={largest + 1} or more, or the dtype in {file.parent / META} is another"
      )

  if dtype == np.uint16 and count > 64 and not stored[1:PIECE:2].any():  # uint32, whose upper halves are all 0
    raise ValueError(
      f"{file}: every second token is 0, so that they look like uint32; then write {file.parent / META}: "
      f'{{"dtype": "uint32", "vocabulary": {vocabulary}}}'
    )
  every = max(PIECE, -(-nbytes // LOOKED_AT) * PIECE)  # of a larger file, pieces that are evenly spread
  for start in range(0, count, every):
    check(stored[start : start + PIECE])
  windows = np.lib.stride_tricks.sliding_window_view(stored, length + 1)[::length]  # nothing is read

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    chosen = windows[indices]
    if chosen.size:
      check(chosen)
    chosen = chosen.astype(np.int32)
    return {"x": chosen[:, :-1], "y": chosen[:, 1:]}

  return Source(len(windows), take)
