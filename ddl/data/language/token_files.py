"""Files of token numbers from a text, as `ddl.data.language.tokens` reads them; made piece by piece."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddl import files
from ddl.data import formats
from ddl.data.language import byte_pairs
from ddl.data.language.tokens import META, TEST, TRAIN

PIECE = 2**18  # bytes that are read at once
TOKENIZER = "tokenizer.json"
LEVELS = ("byte", "bpe")


class TokenFiles(NamedTuple):
  """What has been written."""

  train: int  # tokens
  test: int
  nbytes: int  # of the text
  vocabulary: int
  dtype: str


def write(
  text: str, folder: str, *, level: str = "byte", vocabulary: int = 0, tokenizer: str = "", validation: float = 0.1
) -> TokenFiles:
  """Write train.bin, val.bin and meta.json, and tokenizer.json for byte pairs.

  The last part of the text is for the test. Byte pairs are learnt from the first part alone.

  Args:
    text: a file; UTF-8 but for level "byte".
    folder: for these files, none of which may be there.
    level: "byte", or "bpe" for byte pairs.
    vocabulary: number of tokens with byte pairs, at least 257; fewer where the text has fewer pairs.
    tokenizer: a tokenizer.json that has learnt byte pairs elsewhere, instead.
    validation: share of the text for the test.

  Raises:
    ValueError, OSError: one line, for settings that do not fit, a text that is empty or no UTF-8, or files in the way.
  """
  _check(level, vocabulary, tokenizer, validation)
  source, out = files.regular(text), files.local(folder)
  nbytes = source.stat().st_size
  formats.require_text(next(_pieces(source, 0, formats.HEAD), b""), text)
  cut = nbytes - int(nbytes * validation)
  cut = cut if level == "byte" else _character(source, cut)
  if not 0 < cut < nbytes:
    raise ValueError(f"{text} has {nbytes:,} bytes, of which a share of {validation:g} leaves one part empty")
  if there := [name for name in (TRAIN, TEST, META, TOKENIZER) if (out / name).exists()]:
    raise ValueError(f"{folder} has {', '.join(there)} already; give another folder, or delete what is there")
  spans = {TRAIN: (0, cut), TEST: (cut, nbytes)}
  if level == "byte":
    count, parts = 256, {name: _as_bytes(_pieces(source, *span)) for name, span in spans.items()}
    save, meta = None, "bytes"
  else:
    texts = {name: byte_pairs.words(_pieces(source, *span), text, span[0]) for name, span in spans.items()}
    learn_from = byte_pairs.words(_pieces(source, *spans[TRAIN]), text)
    made = byte_pairs.stored(files.regular(tokenizer)) if tokenizer else byte_pairs.learnt(learn_from, vocabulary)
    count, parts = byte_pairs.size(made), {name: byte_pairs.encoded(made, each) for name, each in texts.items()}
    save, meta = made.save, f"byte pairs, {TOKENIZER}"
  dtype = "uint16" if count <= 2**16 else "uint32"
  out.mkdir(parents=True, exist_ok=True)
  halves = {name: out / f"{name}.part" for name in parts}
  try:
    train, test = (_save(halves[name], dtype, parts[name]) for name in (TRAIN, TEST))
    for name, half in halves.items():
      half.rename(out / name)
  finally:
    for half in halves.values():
      half.unlink(missing_ok=True)
  if save:
    save(str(out / TOKENIZER))
  about = {"dtype": dtype, "vocabulary": count, "tokenizer": meta, "text": source.name, "bytes": [cut, nbytes - cut]}
  (out / META).write_text(json.dumps(about, indent=2) + "\n")
  return TokenFiles(train, test, nbytes, count, dtype)


def _check(level: str, vocabulary: int, tokenizer: str, validation: float) -> None:
  if level not in LEVELS:
    raise ValueError(f"level={level!r}; invalid: must be {' or '.join(LEVELS)}")
  if not 0 < validation < 1:
    raise ValueError(f"validation={validation:g}; invalid: must be a share of the text, above 0 and below 1, e.g. 0.1")
  if level == "byte":
    if vocabulary or tokenizer:
      raise ValueError("vocabulary and tokenizer are for byte pairs, level=bpe; bytes are 256 tokens")
    return
  byte_pairs.library()
  if tokenizer and vocabulary:
    raise ValueError("vocabulary is that of the tokenizer; give one of the two")
  if not tokenizer and not byte_pairs.BYTES < vocabulary <= byte_pairs.MOST:
    least = byte_pairs.BYTES + 1
    raise ValueError(
      f"vocabulary={vocabulary}; invalid: must be from {least} (the bytes and a pair) to {byte_pairs.MOST:,}, e.g. 4096"
    )


def _pieces(file: Path, start: int, stop: int) -> Iterator[bytes]:
  """The bytes from start to stop."""
  with file.open("rb") as opened:
    opened.seek(start)
    while start < stop and (piece := opened.read(min(PIECE, stop - start))):
      start += len(piece)
      yield piece


def _character(file: Path, at: int) -> int:
  """The first position from `at` on where a character of UTF-8 begins; `at` where none does in its four bytes."""
  near = next(_pieces(file, at, at + 4), b"")
  return at + next((i for i, byte in enumerate(near) if byte & 0xC0 != 0x80), 0)


def _as_bytes(pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
  return (np.frombuffer(piece, np.uint8) for piece in pieces)


def _save(file: Path, dtype: str, parts: Iterable[np.ndarray]) -> int:
  """Write the tokens; return their number."""
  count = 0
  with file.open("wb") as opened:
    for part in parts:
      opened.write(part.astype(dtype).tobytes())
      count += len(part)
  return count
