"""Byte pair encoding of a text (Sennrich et al. 2016, arXiv 1508.07909), of bytes and split into words as GPT-2's.

Through Hugging Face's library tokenizers, of which nothing is downloaded.
"""

import codecs
import importlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

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
      raise ValueError(f"{name} is not UTF-8 text ({where}); use --level=byte") from error

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
