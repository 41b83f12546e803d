"""Token files written from a text: tokens, pieces, tokenizers, and errors of one line."""

import gzip
import importlib.util
import json
import re

import numpy as np
import pytest
from helpers.data_files import everything, one_line
from hypothesis import given
from hypothesis import strategies as st

from ddl.data import DATA
from ddl.data import tokenizer as writer

TEXT = "The cat's hat, 42 times — “naïve” 猫 and 🐈!\n\n\tIt   sat. \r\n" * 40
needs_tokenizers = pytest.mark.skipif(
  importlib.util.find_spec("tokenizers") is None,
  reason="tokenizers is missing: pip install -r requirements-tokenize.txt",
)


@pytest.fixture
def written(tmp_path):
  """Write the files of a text: (folder, **settings) -> (TokenFiles, training tokens, test tokens)."""
  (tmp_path / "a.txt").write_bytes(TEXT.encode())

  def write(out="out", **settings):
    result = writer.write(str(tmp_path / "a.txt"), str(tmp_path / out), **settings)
    return result, *(np.fromfile(tmp_path / out / name, result.dtype) for name in ("train.bin", "val.bin"))

  return write


@pytest.mark.parametrize("piece", [7, 2**20])
def test_bytes(written, tmp_path, monkeypatch, piece):
  monkeypatch.setattr(writer, "PIECE", piece)
  result, train, test = written(validation=0.25)
  content = TEXT.encode()
  assert bytes(train.astype(np.uint8)) + bytes(test.astype(np.uint8)) == content
  assert result == (len(train), len(content) // 4, len(content), 256, "uint16")
  assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["meta.json", "train.bin", "val.bin"]
  data = DATA["tokens"](path=str(tmp_path / "out"), length=16)
  assert data.meta["num_outputs"] == 256 and bytes(everything(data.train)["x"][0].astype(np.uint8)) == content[:16]


@needs_tokenizers
@pytest.mark.parametrize("piece", [7, 2**20])
def test_byte_pairs(written, tmp_path, monkeypatch, piece):
  """Decoding the tokens gives the text, and the tokens do not depend on the pieces that are read."""
  import tokenizers

  monkeypatch.setattr(writer, "PIECE", piece)
  result, train, test = written(level="bpe", vocabulary=290)
  tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
  texts = [tokenizer.decode(part.tolist()) for part in (train, test)]
  assert "".join(texts) == TEXT and 0 <= len(TEXT.encode()) // 10 - len(texts[1].encode()) < 4
  assert [tokenizer.encode(text).ids for text in texts] == [train.tolist(), test.tolist()]
  assert len(train) < 0.7 * len(texts[0].encode()) and result.vocabulary == 290 == tokenizer.get_vocab_size()
  assert (train.max(), test.max()) < (290, 290)
  meta = json.loads((tmp_path / "out" / "meta.json").read_text())
  assert (meta["dtype"], meta["vocabulary"]) == ("uint16", 290)
  assert meta["bytes"] == [len(text.encode()) for text in texts]
  assert DATA["tokens"](path=str(tmp_path / "out"), length=16).meta["num_outputs"] == 290
  _, *again = written("again", level="bpe", vocabulary=290)
  assert [part.tolist() for part in again] == [train.tolist(), test.tolist()]


@needs_tokenizers
def test_existing_tokenizer(written, tmp_path):
  _, train, test = written(level="bpe", vocabulary=290, validation=0.2)
  result, *again = written("other", level="bpe", tokenizer=str(tmp_path / "out" / "tokenizer.json"), validation=0.2)
  assert [part.tolist() for part in again] == [train.tolist(), test.tolist()] and result.vocabulary == 290


@needs_tokenizers
def test_truncation_padding_and_special_tokens_are_disabled(written, tmp_path):
  import tokenizers

  _, train, test = written(level="bpe", vocabulary=290, validation=0.2)
  tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
  tokenizer.enable_truncation(16)
  tokenizer.enable_padding(length=40)
  tokenizer.add_special_tokens(["[CLS]"])
  begin = tokenizers.processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 290)])
  tokenizer.post_processor = begin
  tokenizer.save(str(tmp_path / "model.json"))
  _, *again = written("other", level="bpe", tokenizer=str(tmp_path / "model.json"), validation=0.2)
  assert [part.tolist() for part in again] == [train.tolist(), test.tolist()]
  saved = tokenizers.Tokenizer.from_file(str(tmp_path / "other" / "tokenizer.json"))
  assert saved.truncation is None and saved.padding is None
  one_line(ValueError, lambda: list(writer.encoded(tokenizer, [TEXT])), "dropped", f"{len(TEXT):,}")


@needs_tokenizers
def test_tokenizer_that_drops_characters(written, tmp_path):
  import tokenizers

  letters = {letter: i for i, letter in enumerate("abcdefgh")}  # the only tokens
  tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[])).save(str(tmp_path / "few.json"))
  one_line(ValueError, lambda: written(level="bpe", tokenizer=str(tmp_path / "few.json")), "whole text", "dropped")


@pytest.mark.parametrize("name", ["text", "tokenize"])
def test_text_in_another_format(tmp_path, name):
  (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
  path = str(tmp_path / "a.txt.gz")
  read = {"text": lambda: DATA["text"](path=path), "tokenize": lambda: writer.write(path, str(tmp_path / "out"))}
  one_line(ValueError, read[name], "a.txt.gz", "gzip")


@needs_tokenizers
def test_large_vocabularies_need_four_bytes(written, tmp_path):
  import tokenizers

  words = {chr(0x4E00 + i % 1000) + chr(0x4E00 + i // 1000): i for i in range(69_999)} | {"[UNK]": 69_999}
  model = tokenizers.models.WordLevel(words, unk_token="[UNK]")
  tokenizers.Tokenizer(model).save(str(tmp_path / "large.json"))
  result, train, _ = written(level="bpe", tokenizer=str(tmp_path / "large.json"))
  assert result.dtype == "uint32" and set(train.tolist()) == {69_999}
  assert json.loads((tmp_path / "out" / "meta.json").read_text())["dtype"] == "uint32"
  data = DATA["tokens"](path=str(tmp_path / "out"), length=1)
  assert everything(data.train)["x"].tolist() == [[token] for token in train.tolist()[:-1]]


WORDS = re.compile(
  r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"
)  # GPT-2's words, in terms of \w


@given(st.lists(st.sampled_from("a1'!s é猫") | st.sampled_from(" \n\t\r\u2028\x1c"), max_size=60), st.integers(1, 9))
def test_pieces_end_between_words(characters, size):
  """The pieces have the same words as the text, by GPT-2's regular expression."""
  text = "".join(characters)
  content = text.encode()
  pieces = list(writer.words((content[i : i + size] for i in range(0, len(content), size)), "a.txt"))
  assert "".join(pieces) == text
  assert [word for piece in pieces for word in WORDS.findall(piece)] == WORDS.findall(text)


@pytest.mark.parametrize(
  "content, settings, words",
  [
    (b"", {}, ["empty"]),
    (b"abc", {}, ["3 bytes", "0.1"]),
    (b"a" * 99, {"validation": 1.0}, ["validation must", "got 1"]),
    (b"a" * 99, {"validation": float("nan")}, ["validation must", "got nan"]),
    (b"a" * 99, {"level": "word"}, ["'word'", "byte", "bpe"]),
    (b"a" * 99, {"vocabulary": 290}, ["vocabulary", "level=bpe"]),
    pytest.param(b"a" * 99, {"level": "bpe"}, ["257"], marks=needs_tokenizers),
    pytest.param(b"a" * 99, {"level": "bpe", "vocabulary": 256}, ["257"], marks=needs_tokenizers),
    pytest.param(b"a" * 99, {"level": "bpe", "vocabulary": 10**9}, ["1,048,576"], marks=needs_tokenizers),
    pytest.param(
      b"a" * 95 + b"\xff" + b"a" * 99, {"level": "bpe", "vocabulary": 290}, ["UTF-8", "byte 95"], marks=needs_tokenizers
    ),
    pytest.param(
      b"a" * 190 + b"\xff" + b"a" * 9, {"level": "bpe", "vocabulary": 290}, ["UTF-8", "byte 190"],
      marks=needs_tokenizers,
    ),
    pytest.param(b"a" * 99, {"level": "bpe", "tokenizer": "/dev/null"}, ["/dev/null"], marks=needs_tokenizers),
    pytest.param(
      b"{" * 99, {"level": "bpe", "tokenizer": "a.txt"}, ["a.txt", "must be readable"], marks=needs_tokenizers
    ),
  ],
)  # fmt: skip
def test_invalid_texts_and_settings(tmp_path, monkeypatch, content, settings, words):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(writer, "PIECE", 50)
  (tmp_path / "a.txt").write_bytes(content)
  one_line(ValueError, lambda: writer.write("a.txt", "out", **settings), *words)
  assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@needs_tokenizers
def test_tokenizer_that_fails(written, tmp_path):
  import tokenizers

  tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="none")).save(str(tmp_path / "small.json"))
  one_line(ValueError, lambda: written(level="bpe", tokenizer=str(tmp_path / "small.json")), "tokenizer", "UNK")
  assert not list((tmp_path / "out").iterdir())


def test_long_words_are_split(monkeypatch):
  monkeypatch.setattr(writer, "LONGEST", 10)
  assert list(writer.words([b"abc de", b"fghijk", b"lmno p"], "a.txt")) == ["abc", " defghijklmno", " p"]
  assert list(writer.words([b"abcdefgh", b"ijklmno", b" p"], "a.txt")) == ["abcdefghijklmno", " p"]


def test_nothing_is_overwritten(written, tmp_path):
  written()
  before = (tmp_path / "out" / "train.bin").read_bytes()
  one_line(ValueError, lambda: written(validation=0.5), "train.bin, val.bin, meta.json", "another folder")
  assert (tmp_path / "out" / "train.bin").read_bytes() == before


def test_without_the_library(written, monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
  one_line(ValueError, lambda: written(level="bpe", vocabulary=290), "pip install -r requirements-tokenize.txt")
