"""Token files from a text: bytes, characters, or byte pairs (Sennrich et al. 2016, arXiv 1508.07909).

Byte pairs are of bytes and split into words as GPT-2's, by Hugging Face's library tokenizers, without any download.
"""

import codecs
import importlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl import files
from ddl.data import formats
from ddl.data.tokens import META, TEST, TRAIN
from ddl.errors import OptionError

BYTES = 256
MOST = 2**20  # tokens that are asked for: the library sets memory apart for them
AT_ONCE = 8  # texts that are encoded side by side
LONGEST = 2**20  # characters of a word
MISSED = 0.01  # share of characters that a normalizer may drop, as control characters


def library() -> Any:
  """The module. ValueError where it is not installed."""
  try:
    return importlib.import_module("tokenizers")  # not known to a type checker where it is not installed
  except ImportError as error:
    raise ValueError("byte pairs need tokenizers: pip install -r requirements-tokenize.txt") from error


def learnt(texts: Iterable[str], vocabulary: int) -> Any:
  """A tokenizer with the 256 bytes and the most frequent pairs of the texts, at most `vocabulary` tokens in all."""
  tokenizers = library()
  found = tokenizers.Tokenizer(tokenizers.models.BPE())
  found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  found.decoder = tokenizers.decoders.ByteLevel()
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
  found.train_from_iterator(texts, trainer)
  return found


def stored(path: Path) -> Any:
  """The tokenizer of a tokenizer.json, without its truncation and padding. ValueError for any other file."""
  tokenizers = library()
  try:
    found = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # the library raises Exception itself
    raise ValueError(f"{path} is no tokenizer.json of the library tokenizers: {_line(error)}") from error
  found.no_truncation()  # models' files store the length of their context, which would cut every piece of the text
  found.no_padding()
  return found


def size(tokenizer: Any) -> int:
  """Number of tokens, counted from 0."""
  return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def encoded(tokenizer: Any, texts: Iterable[str]) -> Iterator[np.ndarray]:
  """The tokens of each text; some texts at once, on several cores.

  ValueError where the tokenizer fails, or leaves out more than MISSED of the first text's characters.
  """
  left, first = iter(texts), True
  while some := list(islice(left, AT_ONCE)):
    try:
      whole = tokenizer.encode(some[0], add_special_tokens=False) if first else None
      found = tokenizer.encode_batch_fast(some, add_special_tokens=False)
    except Exception as error:  # the library raises Exception itself
      raise ValueError(f"the tokenizer cannot encode this text: {_line(error)}") from error
    if whole:
      _check_complete(whole.offsets, some[0])
    first = False
    yield from (np.array(each.ids, np.uint32) for each in found)


def _check_complete(spans: list[tuple[int, int]], text: str) -> None:
  """ValueError, one line, if the tokens' spans of characters do not cover the text, spaces aside."""
  ends = np.array(spans, np.int64).reshape(-1, 2)
  depth = np.bincount(ends[:, 0], minlength=len(text) + 1) - np.bincount(ends[:, 1], minlength=len(text) + 1)
  missed = [k for k in np.flatnonzero(np.cumsum(depth)[:-1] == 0) if not text[k].isspace()]
  if len(missed) > MISSED * len(text):
    raise ValueError(
      f"the tokenizer must encode the whole text, got {len(missed):,} of {len(text):,} characters left out."
    )


def words(pieces: Iterable[bytes], name: str, first: int = 0) -> Iterator[str]:
  """The text of pieces of UTF-8, cut anew between a word and the space before the next one.

  There byte pairs are cut too, so that their tokens are those of the whole text. What is longer than LONGEST and has no
  such place is cut where a piece ends.

  Args:
    name: of the text, for errors.
    first: position of the first byte in it.

  Raises:
    ValueError: for bytes that are no UTF-8.
  """
  decoder, left = codecs.getincrementaldecoder("utf-8")(), ""

  def decode(piece: bytes, final: bool = False) -> str:
    before = len(decoder.getstate()[0])
    try:
      return decoder.decode(piece, final)
    except UnicodeDecodeError as error:
      where = f"{error.reason} at byte {first - before + error.start}"
      raise ValueError(f"{name} is not UTF-8 text ({where}); level=byte takes any file") from error

  for piece in pieces:
    left += decode(piece)
    first += len(piece)
    backwards, end = range(len(left) - 1, 0, -1), len(left) if len(left) >= LONGEST else 0
    cut = next((i for i in backwards if left[i] in " \n" and not left[i - 1].isspace()), end)
    if cut:
      yield left[:cut]
      left = left[cut:]
  yield left + decode(b"", final=True)


def _line(error: Exception) -> str:
  return next(iter(str(error).splitlines()), type(error).__name__)


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
    texts = {name: words(_pieces(source, *span), text, span[0]) for name, span in spans.items()}
    learn_from = words(_pieces(source, *spans[TRAIN]), text)
    made = stored(files.regular(tokenizer)) if tokenizer else learnt(learn_from, vocabulary)
    count, parts = size(made), {name: encoded(made, each) for name, each in texts.items()}
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
    raise OptionError("level", " or ".join(LEVELS), repr(level))
  if not 0 < validation < 1:
    raise OptionError("validation", "in (0, 1), a share of the text", f"{validation:g}")
  if level == "byte":
    if vocabulary or tokenizer:
      option = "vocabulary" if vocabulary else "tokenizer"
      raise OptionError(option, "unset with level=byte", vocabulary or tokenizer, "level=bpe reads it.")
    return
  library()
  if tokenizer and vocabulary:
    raise OptionError("vocabulary", "unset with a tokenizer, which has its own", vocabulary)
  if not tokenizer and not BYTES < vocabulary <= MOST:
    raise OptionError("vocabulary", f"in [{BYTES + 1}, {MOST:,}] with level=bpe, such as 4096", vocabulary)


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
