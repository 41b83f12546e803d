"""Next-token prediction on token files as written by nanoGPT and llm.c, or on a text file.

A folder contains train.bin and val.bin, little-endian 16- or 32-bit tokens with or without llm.c's header, and
optionally meta.json with their type and the vocabulary size; `python run.py tokenize` writes all three. The default
text is CPython's language reference (`pydoc_data.topics`): about 460,000 characters, depending on the Python version.
"""

import hashlib
import platform
from collections.abc import Callable

import numpy as np

from ddl.api import Data, Source
from ddl.data import source
from ddl.data.token_files import META, PIECE, TEST, TRAIN, TokenFile, not_utf8, open_tokens, read_meta, require_text
from ddl.errors import OptionError
from ddl.ranges import Fraction, NonNegativeInt, PositiveInt, checked

CHECKED = 2**30  # bytes of a file to check at the start; the rest is checked batch by batch


@checked
def tokens(
  *,
  path: str = "",
  length: PositiveInt = 1024,
  vocabulary: NonNegativeInt = 0,
  test_windows: NonNegativeInt = 0,
  validation: Fraction = 0.0,
) -> Data:
  """Read windows of train.bin (training) and val.bin (test): x [length] int32 and the next tokens y [length] int32.

  Windows do not overlap. The files are memory-mapped and may be larger than the memory.

  Args:
    path: a folder with train.bin and val.bin; the tokens are uint16 unless its meta.json has "dtype": "uint32" or
      llm.c's header declares uint32.
    length: tokens per example.
    vocabulary: number of different tokens, 50257 for GPT-2; 0: the number in meta.json.
    test_windows: number of test windows, evenly spaced over val.bin; 0: all.
    validation: share of the training windows to use for validation.
  """
  folder = source.existing(path, f"FOLDER (with {TRAIN} and {TEST}, as written by `python run.py tokenize`)")
  if not folder.is_dir():
    raise OptionError("config.data.path", f"a folder with {TRAIN} and {TEST}", path)
  meta = read_meta(folder)
  vocabulary = vocabulary or meta.get("vocabulary", 0)
  if not vocabulary:
    advice = f'You can also write {folder / META}: {{"dtype": "uint16", "vocabulary": 50257}}.'
    raise OptionError(
      "config.data.vocabulary", f"set for {path} (for example, to 50257 for GPT-2's tokens)", advice=advice
    )
  stored = [open_tokens(folder / name, meta.get("dtype"), vocabulary) for name in (TRAIN, TEST)]
  if vocabulary > 2**16 and any(file.dtype == np.uint16 for file in stored):
    advice = f'For uint32 tokens write {folder / META}: {{"dtype": "uint32"}}.'
    raise OptionError("config.data.vocabulary", "from 1 to 65,536 for uint16 tokens", vocabulary, advice)
  train, test = (_file_windows(file, length, vocabulary) for file in stored)
  if 0 < test_windows < test.size:
    test = source.subset(test, np.arange(test_windows) * test.size // test_windows)
  counts = " + ".join(f"{file.count:,}" for file in stored)
  train, validation_set = source.split(train, validation)
  tokenizer = f" ({meta['tokenizer']})" if "tokenizer" in meta else ""
  description = f"{counts} tokens of {vocabulary:,} from {path}{tokenizer}"
  about = {"task": "language", "shape": (length,), "num_outputs": vocabulary, "description": description}
  return Data(train, test, about, validation_set)


def _file_windows(stored: TokenFile, length: int, vocabulary: int) -> Source:
  """Create a source of the windows of a token file; it raises OptionError for tokens outside of the vocabulary."""
  file, dtype, offset, count = stored
  _require_window(str(file), count, length)
  tokens = np.memmap(file, dtype, "r", offset)

  def check(tokens: np.ndarray) -> None:
    if tokens.size and (largest := int(tokens.max())) >= vocabulary:
      condition = f"within the tokenizer's vocabulary of {vocabulary:,} (if read as {dtype})"
      raise OptionError(f"tokens in {file}", condition, f"{largest:,}", _likely(tokens, vocabulary))

  every = max(PIECE, -(-count * dtype.itemsize // CHECKED) * PIECE)  # check evenly spaced pieces of a larger file
  for start in range(0, count, every):
    check(tokens[start : start + PIECE])
  return _windows(tokens, length, check)


def _require_window(where: str, count: int, length: int) -> None:
  if count <= length:
    advice = f"Use config.data.length={count - 1} or less, or a longer text." if count > 1 else "Use a longer text."
    condition = f"at least {length + 1} (a window and the next token)"
    raise OptionError(f"number of tokens in {where}", condition, f"{count:,}", advice)


def _windows(tokens: np.ndarray, length: int, check: Callable[[np.ndarray], None] = lambda tokens: None) -> Source:
  """Create a source of windows at stride `length` over tokens [n]; check: called on the tokens of each batch."""
  windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]  # reads nothing

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    batch = windows[indices]
    check(batch)
    batch = batch.astype(np.int32, copy=False)
    return {"x": batch[:, :-1], "y": batch[:, 1:]}

  return Source(len(windows), take)


def _likely(tokens: np.ndarray, vocabulary: int) -> str:
  """Return advice that names a type with which all these tokens would be in the vocabulary, or ""."""
  tokens = np.ascontiguousarray(tokens).reshape(-1)
  others = {
    f"big-endian {tokens.dtype}": tokens.byteswap(),
    "uint16": tokens.view(np.uint16) if tokens.dtype.itemsize > 2 else tokens,
    "uint8": tokens.view(np.uint8) if vocabulary <= 256 else tokens,
  }
  likely = next((name for name, values in others.items() if values.max() < vocabulary), "")
  return f"They look like {likely}." * bool(likely)


@checked
def text(*, path: str = "", level: str = "byte", length: PositiveInt = 64, validation: Fraction = 0.0) -> Data:
  """Read windows of a text: x [length] int32, and the next tokens y [length] int32.

  The last tenth of the text is the test set. No window overlaps another or extends into the test set.

  Args:
    path: a text file; "": CPython's language reference (`pydoc_data.topics`).
    level: "byte" (256 tokens) or "char" (UTF-8 characters; meta["vocabulary"] lists them in token order).
    length: tokens per example.
    validation: share of the training windows to use for validation.
  """
  if level not in ("byte", "char"):
    raise OptionError("config.data.level", "byte or char", repr(level))
  if path:
    name, content = path, source.content(source.existing(path, "FILE.txt"))
    require_text(content, path)
  else:
    from pydoc_data.topics import topics

    name = f"the language reference of Python {platform.python_version()} (pydoc_data.topics)"
    content = "\n".join(topics[key] for key in sorted(topics)).encode("utf-8")
  more = {}
  if level == "byte":
    tokens, num_outputs = np.frombuffer(content, np.uint8), 256
  else:
    try:
      characters = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), "<u4")
    except UnicodeDecodeError as error:
      raise not_utf8(name, error, error.start) from error
    vocabulary, tokens = np.unique(characters, return_inverse=True)
    num_outputs, more["vocabulary"] = len(vocabulary), "".join(map(chr, vocabulary))
  tokens = tokens.astype(np.int32)

  test_size = len(tokens) // 10
  _require_window(f"the last tenth of {name}, the test set,", test_size, length)
  train, test = _windows(tokens[:-test_size], length), _windows(tokens[-test_size:], length)
  train, validation_set = source.split(train, validation)
  digest = hashlib.sha256(content).hexdigest()[:12]
  description = f"{name}: {len(tokens):,} {'bytes' if level == 'byte' else 'characters'}, sha256 {digest}"
  meta = {"task": "language", "shape": (length,), "num_outputs": num_outputs, "description": description, **more}
  return Data(train, test, meta, validation_set)
