"""Token files as written by nanoGPT and llm.c: metadata, types, headers, and detection of other formats."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl import files
from ddl.errors import OptionError

TRAIN, TEST, META = "train.bin", "val.bin", "meta.json"
TYPES = ("uint16", "uint32")
MOST = 2**31  # maximum vocabulary size: models take tokens as int32
HEAD = 4096  # bytes of a file that identify its format
PIECE = 2**22  # tokens to check at a time
HEADER = 1024  # bytes of llm.c's header, int32[256]: a magic number, its version, the number of tokens
LLMC = {(20240520, 1): "uint16", (20240801, 7): "uint32"}  # (magic number, version) -> type, as in data_common.py
LLMC_MAGIC = {20240520, 20240801, 20240522, 20240326, 20240327, 20240328}  # of all kinds of llm.c files
MEGATRON = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
JUDGED = 32  # files with more tokens are checked for byte patterns of another type
SIGNATURES = {  # at least 5 bytes each, or fixed fields after a shorter magic number
  "a NumPy array (.npy)": rb"\x93NUMPY",
  "a zip archive (.npz, .pt)": rb"PK\x03\x04.\0|PK\x05\x06\0\0",
  "a gzip file": rb"\x1f\x8b\x08[\0-\x1f].{4}[\0\x02\x04][\0-\x0d\xff]",
  "a bzip2 file": rb"BZh[1-9]1AY&SY",
  "an xz file": rb"\xfd7zXZ\0",
  "a Zstandard file": rb"\x28\xb5\x2f\xfd",
  "an LZ4 file": rb"\x04\x22\x4d\x18[\x40-\x7f]",
  "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
  "a tar archive": rb".{257}ustar",
  "a Parquet file": rb"PAR1\x15[\0\x02\x04\x06]",
  "an Arrow file": rb"ARROW1\0\0|\xff\xff\xff\xff.{2}\0\0\x10\0\0\0",
  "an HDF5 file": rb"\x89HDF\r\n\x1a\n",
  "a pickle": rb"\x80[\x04\x05]\x95.{5}\0\0\0|\x80[\x02\x03]([\]}]q\0|c[\w.]+\n\w+\n|\x8a\x0al\xfc\x9cF\xf9)",
  "a safetensors file": rb'.{4}\0{4}\{"[\w.]',
  "a GGUF file": rb"GGUF[\x01-\x09]\0",
  "a Megatron index (.idx)": rb"MMIDIDX\0\0|TNTIDX\0\0",
  "an SQLite database": rb"SQLite format 3\0",
  "a PDF file": rb"%PDF-\d",
}
PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in SIGNATURES.items()}
SHORTEST = 32  # minimum bytes of a text file: 16 tokens rarely consist of text bytes by chance
CONTROL = re.compile(rb"[^\t\n\r\f\x20-\xff]|\x7f")


def _other_format(head: bytes) -> str:
  """Return the format in SIGNATURES that matches the beginning of a file, or ""."""
  return next((name for name, pattern in PATTERNS.items() if pattern.match(head)), "")


def _is_text(head: bytes) -> bool:
  """Return whether a file begins with UTF-8 text without control characters."""
  if len(head) < SHORTEST or CONTROL.search(head):
    return False
  try:
    head.decode()
  except UnicodeDecodeError as error:
    return len(head) == HEAD and error.start > HEAD - 4  # a truncated character
  return True


def require_text(head: bytes, path: str) -> None:
  """Raise OptionError if a file is empty, or if its first bytes are those of a binary format."""
  if not head or (format_ := _other_format(head)):
    raise OptionError(path, "plain text", format_ if head else "an empty file")


def not_utf8(name: str, error: UnicodeDecodeError, position: int) -> OptionError:
  """Create the error for a text that is not UTF-8. position: the first byte that cannot be decoded."""
  value = f"{error.reason} at byte {position}"
  return OptionError(name, "UTF-8 text", value, "level=byte reads any file.")


def read_meta(folder: Path) -> dict[str, Any]:
  """Return "dtype", "vocabulary" and "tokenizer" from meta.json, if present. Raises ValueError for invalid values."""
  file = folder / META
  if not file.exists():
    return {}
  meta = files.read_json(file, "; write it again, or delete it")
  conditions = {
    "dtype": (lambda value: value in TYPES, " or ".join(TYPES)),
    "vocabulary": (lambda value: type(value) is int and 0 < value <= MOST, f"an integer from 1 to {MOST}"),
    "tokenizer": (lambda value: isinstance(value, str), "text"),
  }
  meta = {key: meta[key] for key in conditions if key in meta}
  for key, value in meta.items():
    valid, condition = conditions[key]
    if not valid(value):
      raise OptionError(f'"{key}" in {file}', condition, repr(value), "Write the file again, or delete it.")
  return meta


class TokenFile(NamedTuple):
  """The type and location of a file's tokens."""

  file: Path
  dtype: np.dtype
  offset: int  # bytes of the header
  count: int


def open_tokens(file: Path, declared: str | None, vocabulary: int) -> TokenFile:
  """Detect the type, offset and number of a file's tokens; raise OptionError for other formats and types.

  declared: the type in meta.json, if any; vocabulary: number of different tokens, for advice.
  """
  nbytes = files.regular(file).stat().st_size
  with file.open("rb") as opened:
    head = opened.read(HEAD)
  plain = f"a file of raw {declared or 'uint16 or uint32'} tokens"
  if format_ := _other_format(head):
    raise OptionError(str(file), plain, format_, "Convert it with numpy.ndarray.tofile.")
  if _is_text(head):
    raise OptionError(str(file), plain, "text", "Convert it with `python run.py tokenize`.")
  if len(head) >= 12 and any(int.from_bytes(head[:4], order) in LLMC_MAGIC for order in ("little", "big")):
    magic, version, count = np.frombuffer(head, "<i4", 3).tolist()
    if (magic, version) not in LLMC:
      raise OptionError(str(file), plain, f"another kind of llm.c file (magic number {magic}, version {version})")
    dtype = np.dtype(LLMC[magic, version])
    if declared not in (None, dtype.name):
      raise OptionError(f'"dtype" in {file.parent / META}', f"{dtype} (as declared in the header of {file})", declared)
    size = HEADER + count * dtype.itemsize
    if nbytes != size:
      advice = "The file is truncated." if nbytes < size else "The header is wrong, or data was appended."
      condition = f"{size:,} bytes for the {count:,} {dtype} tokens that its llm.c header declares"
      raise OptionError(f"size of {file}", condition, f"{nbytes:,}", advice)
    return TokenFile(file, dtype, HEADER, count)
  dtype = np.dtype(declared or TYPES[0])
  origin = f"as declared in {META}" if declared else "the default"
  expected = f"{dtype} ({origin})"
  index = file.with_suffix(".idx")  # of Megatron
  if index.is_file():
    with index.open("rb") as opened:
      head = opened.read(18)
    kind = MEGATRON.get(head[17]) if head.startswith(b"MMIDIDX\0\0") and len(head) == 18 else None
    if kind and kind not in (dtype.name, dtype.name.removeprefix("u")):
      raise OptionError(
        f"the token type of {file}", expected, f"{kind} (according to {index})", _conversion(file, kind)
      )
  if nbytes % dtype.itemsize:
    other = nbytes % 2 == 0  # only uint32 can be wrong then
    cause = f"{file.parent / META} should declare {TYPES[0]}" if other else f"its tokens are not {dtype}"
    advice = f"The file is truncated, or {cause}."
    raise OptionError(f"size of {file}", f"a multiple of {dtype.itemsize} bytes ({dtype})", f"{nbytes:,} bytes", advice)
  count = nbytes // dtype.itemsize
  if count > JUDGED and (other := _other_type(np.memmap(file, dtype, "r", shape=min(count, PIECE)))):
    value = f"what looks like {other}"
    raise OptionError(f"the token type of {file}", expected, value, _conversion(file, other, vocabulary))
  return TokenFile(file, dtype, 0, count)


def _other_type(tokens: np.ndarray) -> str:
  """Return the type that the bytes of `tokens` indicate if it differs from their dtype; else "".

  These patterns indicate another type; no text of at least JUDGED tokens has any of them if it is read correctly:

  - Floating-point numbers: read as such, all values are whole numbers.
  - Wider integers: every second token (the upper half of an integer) is 0; or all upper halves are below 4, and a lower
    half is above 255.
  - uint8 read as uint16: the lower and the upper bytes take the same values, none above 200.
  - Wrong byte order: all lower halves of tokens are 0; or the lower bytes of uint16 are at most 200 and the upper bytes
    take all values (this detects only vocabularies up to 51,456 = 201 * 256).

  Files of zeros are not checked.
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
      narrow = numbers[1 + upper :: 4].any()  # the next token in int32, but 0 in int64
      return f"{order}{'int32' if dtype.itemsize == 2 and narrow else 'int64'}"
  if dtype.itemsize == 2:
    low, high = np.unique(tokens & 255), np.unique(tokens >> 8)
    if low[-1] <= 200 and np.array_equal(low, high):
      return "uint8"
  lower = tokens & (255 if dtype.itemsize == 2 else 2**16 - 1)
  swapped = dtype.itemsize == 2 and lower.max() <= 200 and np.bincount(tokens >> 8, minlength=256).all()
  return f"big-endian {dtype}" if swapped or not lower.any() else ""


def _conversion(file: Path, kind: str, vocabulary: int = 0) -> str:
  """Return advice for converting tokens of another type."""
  if kind == "int32":
    return f'Write {file.parent / META}: {{"dtype": "uint32", "vocabulary": {vocabulary or 50257}}}.'
  swapped, _, kind = kind.rpartition(" ")
  read = f"np.fromfile({file.name!r}, np.dtype({kind!r}){'.newbyteorder()' * bool(swapped)})"
  return f'Convert it with {read}.astype(\'uint32\').tofile(NEW_FILE), and set "dtype": "uint32" in {META}.'
