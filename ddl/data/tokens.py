"""Next-token prediction over token files, as nanoGPT and llm.c have them, or over any text file.

Token files are read on demand. A folder holds train.bin and val.bin, tokens of 16 or 32 bits in little-endian order,
behind llm.c's header or without one, and maybe meta.json, which says what they are: `python run.py tokenize` makes all
three from a text.

Text is read by bytes or by characters. The default text is CPython's own language reference, the standard library's
`pydoc_data.topics`: some 460,000 characters on every machine, which depend on the version of Python (see the digest in
the description).
"""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl import files
from ddl.api import Data, Source
from ddl.data import formats, source
from ddl.errors import OptionError
from ddl.ranges import Fraction, NonNegativeInt, PositiveInt, checked

TRAIN, TEST, META = "train.bin", "val.bin", "meta.json"
TYPES = ("uint16", "uint32")
MOST = 2**31  # tokens of a vocabulary: models take them as int32
PIECE = 2**22  # tokens that are looked at at a time
LOOKED_AT = 2**30  # bytes of a file at the start; the rest of a larger one is only seen in its batches
HEADER = 1024  # bytes of llm.c's header, int32[256]: a magic number, its version, the number of tokens
LLMC = {(20240520, 1): "uint16", (20240801, 7): "uint32"}  # (magic number, version) -> tokens, as its data_common.py
LLMC_MAGIC = {20240520, 20240801, 20240522, 20240326, 20240327, 20240328}  # also of its evaluations, models, tokenizers
MEGATRON = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
JUDGED = 32  # a file with more tokens than this is checked for the byte patterns of another type


@checked
def tokens(
  *,
  path: str = "",
  length: PositiveInt = 1024,
  vocabulary: NonNegativeInt = 0,
  test_windows: NonNegativeInt = 0,
  validation: Fraction = 0.0,
) -> Data:
  """Windows of train.bin, and for the test of val.bin: x [length] int32 and the tokens that follow, y [length] int32.

  Windows lie at stride `length`. The files are mapped into memory, so that they may be larger than it.

  Args:
    path: a folder with train.bin and val.bin; the tokens are uint16 unless its meta.json has "dtype": "uint32", or
      llm.c's header says so.
    length: tokens per example.
    vocabulary: number of tokens that there are; 0: as meta.json has it. GPT-2's is 50257.
    test_windows: number of windows, evenly spread over val.bin, that tests take; 0: all.
    validation: share of the training windows to set apart.

  Raises:
    FileNotFoundError, ValueError: one line, for files that are missing, damaged, too short, of another format or type,
      or tokens beyond the vocabulary; where a file is larger than 1 GiB, the latter also from `take`.
  """
  folder = source.existing(path, f"FOLDER (the one with {TRAIN} and {TEST}, as `python run.py tokenize` writes)")
  if not folder.is_dir():
    raise OptionError("config.data.path", f"the folder with {TRAIN} and {TEST}", path)
  meta = read_meta(folder)
  vocabulary = vocabulary or meta.get("vocabulary", 0)
  if not vocabulary:
    advice = f'Or write {folder / META}: {{"dtype": "uint16", "vocabulary": 50257}}.'
    raise OptionError("config.data.vocabulary", f"set for {path}, for GPT-2's tokens to 50257", advice=advice)
  stored = [_stored(folder / name, meta.get("dtype"), vocabulary) for name in (TRAIN, TEST)]
  dtype = min((each.dtype for each in stored), key=lambda each: each.itemsize)
  most = min(MOST, np.iinfo(dtype).max + 1)
  if not 0 < vocabulary <= most:
    other = f'; for tokens of uint32 write {folder / META}: {{"dtype": "uint32"}}' if most < MOST else ""
    raise OptionError("config.data.vocabulary", f"in [1, {most:,}] for tokens of {dtype}{other}", vocabulary)
  train, test = (_windows(each, length, vocabulary) for each in stored)
  if 0 < test_windows < test.size:
    test = source.subset(test, np.arange(test_windows) * test.size // test_windows)
  counts = " + ".join(f"{each.count:,}" for each in stored)
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


class _Stored(NamedTuple):
  """The tokens of a file."""

  file: Path
  dtype: np.dtype
  offset: int  # bytes of a header
  count: int


def _stored(file: Path, declared: str | None, vocabulary: int) -> _Stored:
  """Return where and what the tokens of a file are; declared: the type that meta.json says.

  ValueError, which names the format, for files that are no plain tokens, as far as their first bytes tell.
  """
  nbytes = files.regular(file).stat().st_size
  with file.open("rb") as opened:
    head = opened.read(formats.HEAD)
  plain = f"{file} must be plain tokens of {declared or 'uint16 or uint32'}"
  what = formats.of_other_programs(head) or ("text" if formats.is_text(head) else "")
  if what:
    advice = "Convert it with `python run.py tokenize`." if what == "text" else "Convert it with NumPy's tofile."
    raise ValueError(f"{plain}, got {what}. {advice}")
  if len(head) >= 12 and any(int.from_bytes(head[:4], order) in LLMC_MAGIC for order in ("little", "big")):
    magic, version, count = (int(each) for each in np.frombuffer(head, "<i4", 3))
    if (magic, version) not in LLMC:
      raise ValueError(f"{plain}, got another file of llm.c (magic {magic}, version {version}).")
    dtype = np.dtype(LLMC[magic, version])
    if declared not in (None, dtype.name):
      raise ValueError(f'"dtype" in {file.parent / META} must be that of {file}, {dtype}, got {declared}.')
    if nbytes != HEADER + count * dtype.itemsize:
      stored, longer = max(0, nbytes - HEADER) // dtype.itemsize, nbytes > HEADER + count * dtype.itemsize
      raise ValueError(
        f"{file} must have the {count:,} tokens of {dtype} that llm.c's header declares, got {stored:,} in {nbytes:,} "
        f"bytes. {'Its header is of a shorter file, or something was appended' if longer else 'It was cut off'}."
      )
    return _Stored(file, dtype, HEADER, count)
  dtype = np.dtype(declared or TYPES[0])
  _check_megatron(file, dtype)
  if nbytes % dtype.itemsize:
    raise ValueError(
      f"{file}: {nbytes:,} bytes are no tokens of {dtype}; invalid: must be a multiple of {dtype.itemsize}: it was cut "
      f"off, or {file.parent / META} should have another dtype"
    )
  count = nbytes // dtype.itemsize
  if count > JUDGED and (other := _other_type(np.memmap(file, dtype, "r", shape=min(count, PIECE)))):
    raise ValueError(f"{file} must be tokens of {dtype}, got {other}. {_conversion(file, other, vocabulary)}")
  return _Stored(file, dtype, 0, count)


def _check_megatron(file: Path, dtype: np.dtype) -> None:
  """ValueError where a Megatron index beside the file says that it has another type."""
  index = file.with_suffix(".idx")
  if not index.is_file():
    return
  with index.open("rb") as opened:
    head = opened.read(18)
  kind = MEGATRON.get(head[17]) if head.startswith(b"MMIDIDX\0\0") and len(head) == 18 else None
  if kind and kind not in (dtype.name, dtype.name.removeprefix("u")):
    raise ValueError(f"{file} must be tokens of {dtype}, got {kind} (by {index}). {_conversion(file, kind)}")


def _other_type(tokens: np.ndarray) -> str:
  """Return the type of which numbers look like these tokens, "" where none does.

  Whole numbers in floating point are recognised as they are. Of wider integers every second token is an upper half:
  0, or below 4 beside others above 255. Of uint8 both bytes of a uint16 take the same values, none above 200. Of uint16
  in the wrong byte order the lower bytes are 0, or none is above 200 while all upper bytes occur, as below 51,456
  tokens. Texts do none of this in JUDGED tokens or more; zeros are not judged.
  """
  dtype = tokens.dtype
  if not tokens.any():
    return ""
  for kind in ("float16", "float32", "float64"):
    other = np.dtype(kind)
    values = tokens[: len(tokens) - len(tokens) % max(1, other.itemsize // dtype.itemsize)].view(other)
    with np.errstate(invalid="ignore", over="ignore"):
      whole = (values >= 0) & (values < 2**31) & (values == np.floor(values))
    if whole.all() and values.any():
      return kind
  for order, numbers, upper in (("", tokens, 1), ("big-endian ", tokens.byteswap(), 0)):
    low, high = numbers[1 - upper :: 2], numbers[upper::2]
    if not high.any() or (high.max() < 4 and low.max() > 255):
      another = numbers[1 + upper :: 4].any()  # where int32 has the next token, and int64 0
      return f"{order}{'int32' if dtype.itemsize == 2 and another else 'int64'}"
  if dtype.itemsize == 2:
    low, high = np.unique(tokens & 255), np.unique(tokens >> 8)
    if low[-1] <= 200 and np.array_equal(low, high):
      return "uint8"
  lower = tokens & (255 if dtype.itemsize == 2 else 2**16 - 1)
  swapped = dtype.itemsize == 2 and lower.max() <= 200 and np.bincount(tokens >> 8, minlength=256).all()
  return f"big-endian {dtype}" if swapped or not lower.any() else ""


def _conversion(file: Path, kind: str, vocabulary: int = 0) -> str:
  """Advice for tokens of another type."""
  if kind == "int32":
    return f'Write {file.parent / META}: {{"dtype": "uint32", "vocabulary": {vocabulary or 50257}}}.'
  swapped, _, kind = kind.rpartition(" ")
  read = f"np.fromfile({file.name!r}, np.dtype({kind!r}){'.newbyteorder()' * bool(swapped)})"
  return f'Convert it: {read}.astype(\'uint32\').tofile(NEW_FILE), with "dtype": "uint32" in {META}.'


def _windows(stored: _Stored, length: int, vocabulary: int) -> Source:
  """The windows of a file, none of which has a token beyond the vocabulary."""
  file, dtype, offset, count = stored
  if count < length + 1:
    fits = f"use length={count - 1} or less, or a longer text" if count > 1 else "use a longer text"
    raise ValueError(f"{file}: {count:,} tokens hold no window of {length} + 1: {fits}")
  tokens = np.memmap(file, dtype, "r", offset)

  def check(some: np.ndarray) -> None:
    if (largest := int(some.max())) >= vocabulary:
      raise ValueError(
        f"{file}: has the token {largest:,}, but the vocabulary has {vocabulary:,}, counted from 0: it must be that of "
        f"the tokenizer, or the file is not plain {dtype}{_likely(some, vocabulary)}"
      )

  every = max(PIECE, -(-count * dtype.itemsize // LOOKED_AT) * PIECE)  # of a larger file, pieces that are evenly spread
  for start in range(0, count, every):
    check(tokens[start : start + PIECE])
  windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]  # nothing is read

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    chosen = windows[indices]
    if chosen.size:
      check(chosen)
    chosen = chosen.astype(np.int32)
    return {"x": chosen[:, :-1], "y": chosen[:, 1:]}

  return Source(len(windows), take)


def _likely(some: np.ndarray, vocabulary: int) -> str:
  """Return the type in which all of these tokens are in the vocabulary, in words."""
  some = np.ascontiguousarray(some).reshape(-1)
  others = {
    f"big-endian {some.dtype}": some.byteswap(),
    "uint16": some.view(np.uint16) if some.dtype.itemsize > 2 else some,
    "uint8": some.view(np.uint8) if vocabulary <= 256 else some,
  }
  likely = next((name for name, tokens in others.items() if tokens.max() < vocabulary), "")
  return f", but {likely}" * bool(likely)


@checked
def text(*, path: str = "", level: str = "byte", length: PositiveInt = 64, validation: Fraction = 0.0) -> Data:
  """Windows of a text: x [length] int32 and the tokens that follow, y [length] int32.

  The last tenth of the text is the test set. Windows lie at stride `length`, and none crosses the cut.

  Args:
    path: a text file; "" is the corpus above.
    level: "byte" (256 tokens) or "char" (UTF-8 characters; meta["vocabulary"] holds them in token order).
    length: tokens per example.
    validation: share of the training windows to set apart.

  Raises:
    FileNotFoundError, ValueError: one line, for a missing, empty, undecodable or too short text, or another level.
  """
  if level not in ("byte", "char"):
    raise OptionError("level", "byte or char", repr(level))
  content, name = _content(path)
  if not content:
    raise ValueError(f"{name} is empty")
  more = {}
  if level == "byte":
    tokens, num_outputs = np.frombuffer(content, np.uint8), 256
  else:
    try:
      characters = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), "<u4")
    except UnicodeDecodeError as error:
      where = f"{error.reason} at byte {error.start}"
      raise ValueError(f"{name} is not UTF-8 text ({where}); level=byte takes any file") from error
    vocabulary, tokens = np.unique(characters, return_inverse=True)
    num_outputs, more["vocabulary"] = len(vocabulary), "".join(map(chr, vocabulary))
  tokens = tokens.astype(np.int32)

  test_size = len(tokens) // 10
  if test_size < length + 1:
    raise ValueError(
      f"{name} has {len(tokens)} tokens, so its last tenth, the test set, holds no window of {length} + 1: "
      + (f"use length={test_size - 1} or less, or a longer text" if test_size > 1 else "use a longer text")
    )
  train, test = _text_windows(tokens[:-test_size], length), _text_windows(tokens[-test_size:], length)
  train, held_out = source.split(train, validation)
  digest = hashlib.sha256(content).hexdigest()[:12]
  description = f"{name}: {len(tokens):,} {'bytes' if level == 'byte' else 'characters'}, sha256 {digest}"
  meta = {"task": "language", "shape": (length,), "num_outputs": num_outputs, "description": description, **more}
  return Data(train, test, meta, held_out)


def _content(path: str) -> tuple[bytes, str]:
  if not path:
    from pydoc_data.topics import topics

    name = f"the language reference of Python {platform.python_version()} (pydoc_data.topics)"
    return "\n".join(topics[key] for key in sorted(topics)).encode("utf-8"), name
  content = source.content(source.existing(path, "FILE.txt"))
  formats.require_text(content[: formats.HEAD], path)
  return content, path


def _text_windows(tokens: np.ndarray, length: int) -> Source:
  count = (len(tokens) - 1) // length
  x = tokens[: count * length].reshape(count, length)  # views of one array, not copies
  y = tokens[1 : count * length + 1].reshape(count, length)
  return source.in_memory(x, y)
