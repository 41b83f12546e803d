"""Token files: their windows, their types, and one clear line for files that are not what they should be."""

import json

import numpy as np
import pytest
from helpers.data_files import everything, one_line, write_tokens

from ddl.data import DATA
from ddl.data.language import tokens

RNG = np.random.default_rng(0)
MANY = RNG.integers(0, 1000, 1001)


@pytest.mark.parametrize("dtype, least", [("uint16", 0), ("uint32", 100_000)])
def test_windows(tmp_path, dtype, least):
  train, test = MANY + least, MANY[:50] + least
  path = write_tokens(tmp_path, train, test, dtype, vocabulary=least + 1000)
  data = DATA["tokens"](path=path, length=10)
  assert data.meta["num_outputs"] == least + 1000 and data.meta["shape"] == (10,) and data.meta["task"] == "language"
  assert (data.train.size, data.test.size) == (100, 4)
  for part, stored in ((data.train, train), (data.test, test)):
    batch = everything(part)
    for i in range(part.size):
      assert batch["x"][i].tolist() == stored[10 * i : 10 * i + 10].tolist()
      assert batch["y"][i].tolist() == stored[10 * i + 1 : 10 * i + 11].tolist()


def test_bytes_are_those_of_the_text(tmp_path):
  """`tokens` of a text's bytes and `text` agree in every example: the two cut it at the same places."""
  (tmp_path / "a.txt").write_bytes(content := bytes(RNG.integers(0, 256, 4321, np.uint8)))
  stored = np.frombuffer(content, np.uint8)
  path = write_tokens(tmp_path / "out", stored[:-432], stored[-432:], vocabulary=256)
  one, two = DATA["tokens"](path=path, length=16), DATA["text"](path=str(tmp_path / "a.txt"), length=16)
  for name in ("train", "test"):
    for key in ("x", "y"):
      np.testing.assert_array_equal(everything(getattr(one, name))[key], everything(getattr(two, name))[key])


def test_the_setting_comes_before_the_file(tmp_path):
  path = write_tokens(tmp_path, MANY, MANY, vocabulary=1000)
  assert DATA["tokens"](path=path, length=10, vocabulary=1024).meta["num_outputs"] == 1024


def test_some_test_windows_are_spread_evenly(tmp_path):
  path = write_tokens(tmp_path, MANY, np.arange(101), vocabulary=1000)
  chosen = everything(DATA["tokens"](path=path, length=10, test_windows=4).test)
  assert chosen["x"][:, 0].tolist() == [0, 20, 50, 70]
  assert DATA["tokens"](path=path, length=10, test_windows=400).test.size == 10


def test_a_batch_is_checked_where_the_start_does_not_look(tmp_path, monkeypatch):
  """Of a large file only some pieces are looked at when it is opened."""
  monkeypatch.setattr(tokens, "PIECE", 16)
  monkeypatch.setattr(tokens, "LOOKED_AT", 512)
  stored = np.ones(1001, np.int64)
  stored[30] = 77  # in the second of two pieces
  path = write_tokens(tmp_path, stored, np.ones(50), vocabulary=5)
  train = DATA["tokens"](path=path, length=10).train
  assert train.take(np.array([0, 1, 4]))["x"].max() == 1
  one_line(ValueError, lambda: train.take(np.array([0, 2])), "train.bin", "77", "vocabulary has 5", "=78")
  stored[70], stored[30] = 88, 1  # in a piece that is looked at
  one_line(
    ValueError, lambda: DATA["tokens"](path=write_tokens(tmp_path, stored, stored, vocabulary=5), length=8), "88"
  )


@pytest.mark.parametrize(
  "settings, words",
  [
    ({"length": 0}, ["length=0"]),
    ({"test_windows": -1}, ["test_windows=-1"]),
    ({"path": "", "vocabulary": 0}, ["config.data.path="]),
    ({"vocabulary": 0}, ["--config.data.vocabulary", "50257", "meta.json"]),
    ({"vocabulary": 999}, ["train.bin", "999", "--config.data.vocabulary=1000"]),
    ({"vocabulary": 70_000}, ["70000", "65,536", "uint32"]),
    ({"vocabulary": -1}, ["-1"]),
    ({"length": 1001}, ["train.bin", "1,001 tokens", "length=1000"]),
    ({"length": 50}, ["val.bin", "50 tokens", "length=49"]),
  ],
)
def test_settings_that_do_not_fit(tmp_path, settings, words):
  path = write_tokens(tmp_path, np.append(MANY, 999)[1:], MANY[:50])
  one_line(ValueError, lambda: DATA["tokens"](**{"path": path, "vocabulary": 1000, "length": 8} | settings), *words)


@pytest.mark.parametrize(
  "meta, words",
  [
    ("{", ["JSON"]),
    ("[" * 100_000, ["JSON"]),
    ("\\udcff", ["JSON"]),
    ("[]", ["object"]),
    ('{"dtype": "int8"}', ["int8", "uint16", "uint32"]),
    ('{"dtype": ["uint16"]}', ["dtype"]),
    ('{"vocabulary": "many"}', ["many"]),
    ('{"vocabulary": 0}', ["vocabulary"]),
    ('{"vocabulary": true}', ["vocabulary"]),
    ('{"vocabulary": 1000, "tokenizer": 3}', ["tokenizer"]),
    ('{"dtype": "uint32", "vocabulary": 1000}', ["2,002 bytes", "uint32", "multiple of 4"]),
  ],
)
def test_damaged_meta(tmp_path, meta, words):
  path = write_tokens(tmp_path, MANY, MANY)
  (tmp_path / "meta.json").write_text(meta)
  one_line(ValueError, lambda: DATA["tokens"](path=path, length=8), "meta.json", *words)


def test_damaged_files(tmp_path):
  def load():
    return DATA["tokens"](path=str(tmp_path / "set"), length=8)

  one_line(FileNotFoundError, load, "set")
  write_tokens(tmp_path / "set", MANY, MANY, vocabulary=1000)
  (tmp_path / "set" / "val.bin").unlink()
  one_line(FileNotFoundError, load, "val.bin")
  (tmp_path / "set" / "val.bin").write_bytes(b"abc")
  one_line(ValueError, load, "val.bin", "3 bytes", "multiple of 2")
  (tmp_path / "set" / "val.bin").write_bytes(b"")
  one_line(ValueError, load, "val.bin", "longer text")
  one_line(ValueError, lambda: DATA["tokens"](path=str(tmp_path / "set" / "train.bin")), "train.bin", "folder")


def test_tokens_of_another_type_are_noticed(tmp_path):
  path = write_tokens(tmp_path, MANY, MANY, "uint32")
  for meta, word in ({"vocabulary": 1000}, "uint32"), ({"dtype": "uint16", "vocabulary": 1000}, "every second"):
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    one_line(ValueError, lambda: DATA["tokens"](path=path, length=8), word, "meta.json")
