"""Formats of files by their first bytes, to refuse a file that is not what a data set reads."""

import re

HEAD = 4096  # bytes of a file that are looked at
SIGNATURES = {  # each at least 5 bytes, or with fixed fields behind a shorter magic number
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
SHORTEST = 32  # bytes of what is called a text: 16 tokens whose bytes are all those of text do not occur by chance
CONTROL = re.compile(rb"[^\t\n\r\f\x20-\xff]|\x7f")


def of_other_programs(head: bytes) -> str:
  """Return the name of the format that the first bytes of a file are of, "" for none of SIGNATURES."""
  return next((name for name, pattern in PATTERNS.items() if pattern.match(head)), "")


def is_text(head: bytes) -> bool:
  """Return whether the first bytes of a file are UTF-8 without control characters."""
  if len(head) < SHORTEST or CONTROL.search(head):
    return False
  try:
    head.decode()
  except UnicodeDecodeError as error:
    return len(head) == HEAD and error.start > HEAD - 4  # a character that is cut
  return True


def require_text(head: bytes, path: str) -> None:
  """ValueError, one line, for a file of another format, whose bytes a model of text would learn."""
  if what := of_other_programs(head):
    raise ValueError(f"{path} must be a text, got {what}. Convert it to plain text.")
