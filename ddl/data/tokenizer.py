"""Write token files from a text, by bytes or byte pair encoding (Sennrich et al. 2016, arXiv 1508.07909).

Byte pair encoding uses Hugging Face's `tokenizers`, at byte level and with GPT-2's rule for splitting words. Nothing is
downloaded.
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
from ddl.data.checks import readable
from ddl.data.token_files import HEAD, META, TEST, TRAIN, not_utf8, require_text
from ddl.errors import OptionError

BYTES = 256
MOST = 2**20  # maximum vocabulary size: the library allocates memory for it
AT_ONCE = 8  # texts to encode in parallel
LONGEST = 2**20  # characters without a word boundary after which `words` splits a word
MISSED = 0.01  # share of characters that a normalizer may drop (control characters)
PIECE = 2**18  # bytes to read at a time
TOKENIZER = "tokenizer.json"
LEVELS = ("byte", "bpe")


class TokenFiles(NamedTuple):
  """The sizes and type of token files."""

  train: int  # tokens
  test: int
  nbytes: int  # of the text
  vocabulary: int
  dtype: str


def _library() -> Any:
  """Import Hugging Face's `tokenizers`; raise ValueError if it is not installed."""
  try:
    return importlib.import_module("tokenizers")  # so that type checking works without it
  except ImportError as error:
    raise ValueError(
      "tokenizers must be installed for level=bpe. Run `pip install -r requirements-tokenize.txt`."
    ) from error


def _trained(texts: Iterable[str], vocabulary: int) -> Any:
  """Train a tokenizer whose tokens are the 256 bytes and the most frequent byte pairs, up to `vocabulary` tokens."""
  tokenizers = _library()
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer


def _loaded(path: Path) -> Any:
  """Load a tokenizer.json without its truncation and padding; raise OptionError for any other file."""
  with readable(f"{path} (as a tokenizer.json of Hugging Face's tokenizers)"):
    tokenizer = _library().Tokenizer.from_file(str(path))
  tokenizer.no_truncation()  # the file may store a model's context length, which would truncate every piece
  tokenizer.no_padding()
  return tokenizer


def encoded(tokenizer: Any, texts: Iterable[str]) -> Iterator[np.ndarray]:
  """Yield the tokens of each text; encode several texts in parallel.

  Raises ValueError if the tokenizer fails, or drops more than a share MISSED of the first text's characters.
  """
  iterator, first = iter(texts), True
  while batch := list(islice(iterator, AT_ONCE)):
    with readable("the text for the tokenizer"):
      encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
      if first:  # the tokens' character spans must cover the text except for spaces
        text, offsets = batch[0], tokenizer.encode(batch[0], add_special_tokens=False).offsets
        starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
        depth = np.bincount(starts, minlength=len(text) + 1) - np.bincount(ends, minlength=len(text) + 1)
        missed = sum(not text[k].isspace() for k in np.flatnonzero(np.cumsum(depth)[:-1] == 0))
        if missed > MISSED * len(text):
          value = f"{missed:,} of {len(text):,} characters dropped"
          raise OptionError("the tokenizer", "able to encode the whole text", value)
    first = False
    yield from (np.array(encoding.ids, np.uint32) for encoding in encodings)


def words(pieces: Iterable[bytes], name: str, first: int = 0) -> Iterator[str]:
  """Decode pieces of UTF-8 and yield the text in parts that end between words, before a space or newline.

  Byte pairs never cross such a boundary, so the tokens are the same as those of the whole text. LONGEST or more
  characters without a boundary are split at the end of a piece.

  name: the text's name for errors; first: position of the first byte in the text. Raises OptionError for bytes that are
  not UTF-8.
  """
  decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""

  def decode(piece: bytes, final: bool = False) -> str:
    before = len(decoder.getstate()[0])
    try:
      return decoder.decode(piece, final)
    except UnicodeDecodeError as error:
      raise not_utf8(name, error, first - before + error.start) from error

  for piece in pieces:
    rest += decode(piece)
    first += len(piece)
    backwards, end = range(len(rest) - 1, 0, -1), len(rest) if len(rest) >= LONGEST else 0
    cut = next((i for i in backwards if rest[i] in " \n" and not rest[i - 1].isspace()), end)
    if cut:
      yield rest[:cut]
      rest = rest[cut:]
  yield rest + decode(b"", final=True)


def write(
  text: str, folder: str, *, level: str = "byte", vocabulary: int = 0, tokenizer: str = "", validation: float = 0.1
) -> TokenFiles:
  """Encode a text and write train.bin, val.bin and meta.json, and for byte pairs also tokenizer.json.

  The last part of the text becomes val.bin, the test set. Byte pairs are trained only on the rest.

  Args:
    text: a file; UTF-8 unless level is "byte".
    folder: folder for these files, none of which may exist.
    level: "byte", or "bpe" for byte pairs.
    vocabulary: number of tokens for level "bpe", at least 257; fewer are used if the text has fewer pairs.
    tokenizer: a trained tokenizer.json to use instead of training one.
    validation: share of the text that becomes val.bin.
  """
  _check(level, vocabulary, tokenizer, validation)
  source, out = files.regular(text), files.local(folder)
  nbytes = source.stat().st_size
  require_text(next(_pieces(source, 0, HEAD), b""), text)
  cut = nbytes - int(nbytes * validation)
  if level == "bpe":  # split where a UTF-8 character begins, if one of the next four bytes does
    cut += next((i for i, byte in enumerate(next(_pieces(source, cut, cut + 4), b"")) if byte & 0xC0 != 0x80), 0)
  if not 0 < cut < nbytes:
    raise OptionError("validation", f"a share of the {nbytes:,} bytes in {text} that leaves no part empty", validation)
  if existing := [name for name in (TRAIN, TEST, META, TOKENIZER) if (out / name).exists()]:
    raise OptionError(
      folder, "a folder without token files", ", ".join(existing), "Use another folder, or delete these files."
    )
  spans = {TRAIN: (0, cut), TEST: (cut, nbytes)}
  if level == "byte":
    count, bpe, about = 256, None, "bytes"
    parts = {name: (np.frombuffer(p, np.uint8) for p in _pieces(source, *span)) for name, span in spans.items()}
  else:
    texts = {name: words(_pieces(source, *span), text, span[0]) for name, span in spans.items()}
    training_text = words(_pieces(source, *spans[TRAIN]), text)
    bpe = _loaded(files.regular(tokenizer)) if tokenizer else _trained(training_text, vocabulary)
    count, about = 1 + max(bpe.get_vocab(with_added_tokens=True).values()), f"byte pairs, {TOKENIZER}"
    parts = {name: encoded(bpe, part) for name, part in texts.items()}
  dtype, counts = "uint16" if count <= 2**16 else "uint32", dict.fromkeys(parts, 0)
  out.mkdir(parents=True, exist_ok=True)
  halves = {name: out / f"{name}.part" for name in parts}
  try:
    for name, part in parts.items():
      with halves[name].open("wb") as opened:
        for tokens in part:
          opened.write(tokens.astype(dtype).tobytes())
          counts[name] += len(tokens)
    for name, half in halves.items():
      half.rename(out / name)
  finally:
    for half in halves.values():
      half.unlink(missing_ok=True)
  if bpe:
    bpe.save(str(out / TOKENIZER))
  meta = {"dtype": dtype, "vocabulary": count, "tokenizer": about, "text": source.name, "bytes": [cut, nbytes - cut]}
  (out / META).write_text(json.dumps(meta, indent=2) + "\n")
  return TokenFiles(counts[TRAIN], counts[TEST], nbytes, count, dtype)


def _check(level: str, vocabulary: int, tokenizer: str, validation: float) -> None:
  if level not in LEVELS:
    raise OptionError("level", " or ".join(LEVELS), repr(level))
  if not 0 < validation < 1:
    raise OptionError("validation", "in (0, 1) (the share of the text for val.bin)", f"{validation:g}")
  if level == "byte":
    if vocabulary or tokenizer:
      option = "vocabulary" if vocabulary else "tokenizer"
      raise OptionError(option, "unset with level=byte", vocabulary or tokenizer, "It applies only to level=bpe.")
    return
  _library()
  if tokenizer and vocabulary:
    raise OptionError("vocabulary", "unset when tokenizer is set", vocabulary, "The tokenizer defines it.")
  if not tokenizer and not BYTES < vocabulary <= MOST:
    raise OptionError("vocabulary", f"from {BYTES + 1} to {MOST:,} with level=bpe (for example, 4096)", vocabulary)


def _pieces(file: Path, start: int, stop: int) -> Iterator[bytes]:
  """Yield the bytes `start` to `stop` of a file, in pieces of at most PIECE bytes."""
  with file.open("rb") as opened:
    opened.seek(start)
    while start < stop and (piece := opened.read(min(PIECE, stop - start))):
      start += len(piece)
      yield piece
