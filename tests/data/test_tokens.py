"""Token files: windows, types, and errors for files of other formats."""

import bz2
import gzip
import io
import json
import lzma
import pickle

import numpy as np
import pytest
from helpers.data_files import everything, one_line, write_tokens

from ddl.data import DATA, tokens

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


def test_tokens_of_bytes_equal_text(tmp_path):
  """`tokens` and `text` have the same examples of a text's bytes."""
  (tmp_path / "a.txt").write_bytes(content := bytes(RNG.integers(0, 256, 4321, np.uint8)))
  stored = np.frombuffer(content, np.uint8)
  path = write_tokens(tmp_path / "out", stored[:-432], stored[-432:], vocabulary=256)
  one, two = DATA["tokens"](path=path, length=16), DATA["text"](path=str(tmp_path / "a.txt"), length=16)
  for name in ("train", "test"):
    for key in ("x", "y"):
      np.testing.assert_array_equal(everything(getattr(one, name))[key], everything(getattr(two, name))[key])


def test_the_setting_overrides_the_file(tmp_path):
  path = write_tokens(tmp_path, MANY, MANY, vocabulary=1000)
  assert DATA["tokens"](path=path, length=10, vocabulary=1024).meta["num_outputs"] == 1024


def test_test_windows_are_evenly_spaced(tmp_path):
  path = write_tokens(tmp_path, MANY, np.arange(101), vocabulary=1000)
  windows = everything(DATA["tokens"](path=path, length=10, test_windows=4).test)
  assert windows["x"][:, 0].tolist() == [0, 20, 50, 70]
  assert DATA["tokens"](path=path, length=10, test_windows=400).test.size == 10


def test_batches_of_large_files_are_checked(tmp_path, monkeypatch):
  """Only some pieces of a large file are checked when it is opened."""
  monkeypatch.setattr(tokens, "PIECE", 16)
  monkeypatch.setattr(tokens, "CHECKED", 512)
  stored = np.ones(1001, np.int64)
  stored[30] = 77  # in the second of two pieces
  path = write_tokens(tmp_path, stored, np.ones(50), vocabulary=5)
  train = DATA["tokens"](path=path, length=10).train
  assert train.take(np.array([0, 1, 4]))["x"].max() == 1
  one_line(ValueError, lambda: train.take(np.array([0, 2])), "train.bin", "vocabulary of 5", "got 77")
  stored[70], stored[30] = 88, 1  # in a piece that is checked when the file is opened
  one_line(
    ValueError, lambda: DATA["tokens"](path=write_tokens(tmp_path, stored, stored, vocabulary=5), length=8), "88"
  )


@pytest.mark.parametrize(
  "settings, words",
  [
    ({"length": 0}, ["tokens.length must be an integer >= 1, got 0."]),
    ({"test_windows": -1}, ["tokens.test_windows must be an integer >= 0, got -1."]),
    ({"path": "", "vocabulary": 0}, ["config.data.path must be set"]),
    ({"vocabulary": 0}, ["config.data.vocabulary", "50257", "meta.json"]),
    ({"vocabulary": 999}, ["train.bin", "got 999", "tokenizer"]),
    ({"vocabulary": 70_000}, ["70000", "65,536", "uint32"]),
    ({"vocabulary": -1}, ["-1"]),
    ({"length": 1001}, ["train.bin", "got 1,001.", "length=1000"]),
    ({"length": 50}, ["val.bin", "got 50.", "length=49"]),
  ],
)
def test_invalid_settings(tmp_path, settings, words):
  path = write_tokens(tmp_path, np.append(MANY, 999)[1:], MANY[:50])
  one_line(ValueError, lambda: DATA["tokens"](**{"path": path, "vocabulary": 1000, "length": 8} | settings), *words)


@pytest.mark.parametrize(
  "meta, words",
  [
    ("{", ["damaged"]),
    ("[" * 100_000, ["damaged"]),
    ("\\udcff", ["damaged"]),
    ("[]", ["object"]),
    ('{"dtype": "int8"}', ["int8", "uint16", "uint32"]),
    ('{"dtype": ["uint16"]}', ["dtype"]),
    ('{"vocabulary": "many"}', ["many"]),
    ('{"vocabulary": 0}', ["vocabulary"]),
    ('{"vocabulary": true}', ["vocabulary"]),
    ('{"vocabulary": 1000, "tokenizer": 3}', ["tokenizer"]),
    ('{"dtype": "uint32", "vocabulary": 1000}', ["2,002 bytes", "multiple of 4", "should declare uint16"]),
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
  one_line(ValueError, load, "val.bin", "3 bytes", "multiple of 2", "its tokens are not uint16")
  (tmp_path / "set" / "val.bin").write_bytes(b"")
  one_line(ValueError, load, "val.bin", "longer text")
  one_line(ValueError, lambda: DATA["tokens"](path=str(tmp_path / "set" / "train.bin")), "train.bin", "folder")


def test_int32_tokens_without_a_declared_type(tmp_path):
  path = write_tokens(tmp_path, MANY, MANY, "uint32")
  for meta in {"vocabulary": 1000}, {"dtype": "uint16", "vocabulary": 1000}:
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    one_line(ValueError, lambda: DATA["tokens"](path=path, length=8), "int32", '{"dtype": "uint32"', "meta.json")


# files of other programs

GPT2 = np.minimum(100 * RNG.pareto(0.5, 9000), 50256).astype(np.int64)  # mostly small tokens, as in a text
LLAMA = RNG.integers(0, 128256, 1000)


def loaded(tmp_path, content, vocabulary=50257, **meta):
  for name in ("train.bin", "val.bin"):
    (tmp_path / name).write_bytes(content)
  if meta:
    (tmp_path / "meta.json").write_text(json.dumps(meta))
  return DATA["tokens"](path=str(tmp_path), length=10, vocabulary=vocabulary)


def llmc(tokens, dtype, magic, version, count=None):
  header = np.zeros(256, "<i4")
  header[:3] = magic, version, len(tokens) if count is None else count
  return header.tobytes() + tokens.astype(dtype).tobytes()


@pytest.mark.parametrize(
  "tokens, dtype, magic, version, vocabulary",
  [(GPT2, "uint16", 20240520, 1, 50257), (LLAMA, "uint32", 20240801, 7, 128256)],
)
def test_llm_c_header(tmp_path, tokens, dtype, magic, version, vocabulary):
  content = llmc(tokens, dtype, magic, version)
  data = loaded(tmp_path, content, vocabulary)
  assert data.train.size == (len(tokens) - 1) // 10 and f"{len(tokens):,} + {len(tokens):,} tokens" in str(data.meta)
  batch = everything(data.train)
  np.testing.assert_array_equal(batch["x"].ravel(), tokens[: batch["x"].size])
  np.testing.assert_array_equal(batch["y"].ravel(), tokens[1 : batch["y"].size + 1])
  one_line(ValueError, lambda: loaded(tmp_path, content[:-4], vocabulary), "train.bin", "truncated")
  longer = f"must be {len(content):,} bytes"
  one_line(
    ValueError,
    lambda: loaded(tmp_path, content + bytes(4), vocabulary),
    "train.bin",
    f"{len(tokens):,}",
    longer,
    f"{len(content) + 4:,}",
  )
  one_line(ValueError, lambda: loaded(tmp_path, llmc(tokens, dtype, magic, 9), vocabulary), "llm.c", "version 9")
  one_line(ValueError, lambda: loaded(tmp_path, llmc(tokens, dtype, 20240522, 1), vocabulary), "llm.c", "20240522")
  swapped = np.frombuffer(content, "<i4").byteswap().tobytes()
  one_line(ValueError, lambda: loaded(tmp_path, swapped, vocabulary), "llm.c")
  other = "uint32" if dtype == "uint16" else "uint16"
  one_line(ValueError, lambda: loaded(tmp_path, content, vocabulary, dtype=other), "meta.json", dtype, other)


@pytest.mark.parametrize("kind", ["int64", "int32", ">i8", ">i4", ">u2", "float16", "float32", "float64"])
def test_tokens_of_another_type(tmp_path, kind):
  name = ("big-endian " if kind.startswith(">") else "") + np.dtype(kind).newbyteorder("=").name
  one_line(
    ValueError,
    lambda: loaded(tmp_path, GPT2.astype(kind).tobytes(), 65536),
    "train.bin",
    f"got what looks like {name}. ",
  )


@pytest.mark.parametrize(
  "kind, as_uint16, as_uint32",
  [
    ("int64", "int64", "int64"),
    ("int32", "int32", ""),
    (">i8", "big-endian int64", "big-endian int64"),
    (">i4", "big-endian int32", "big-endian uint32"),
  ],
)
def test_tokens_above_16_bits(tmp_path, kind, as_uint16, as_uint32):
  """The upper half of each token of Llama 3 is 0 or 1."""
  content = LLAMA.astype(kind).tobytes()
  one_line(ValueError, lambda: loaded(tmp_path, content, 65536), as_uint16)
  if as_uint32:
    one_line(ValueError, lambda: loaded(tmp_path, content, 128256, dtype="uint32"), as_uint32)
  else:
    assert loaded(tmp_path, content, 128256, dtype="uint32").train.size == 99


def test_tokens_of_one_byte(tmp_path):
  for characters in (65, 128, 200):
    content = RNG.integers(0, characters, 20_000).astype(np.uint8).tobytes()
    one_line(
      ValueError,
      lambda content=content: loaded(tmp_path, content),
      "train.bin",
      "must be uint16 (the default), got what looks like uint8. Convert",
    )


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_random_tokens_are_valid(tmp_path, dtype):
  for vocabulary in (2, 4, 65, 256, 257, 1000, 50257, 65536):
    for seed, size in enumerate((40, 100, 5000, 20000, 9)):
      tokens = np.random.default_rng(seed).integers(0, vocabulary, size)
      loaded(tmp_path, np.append(tokens, tokens[:10]).astype(dtype).tobytes(), vocabulary, dtype=dtype)


def buffer(save, *values):
  out = io.BytesIO()
  save(out, *values)
  return out.getvalue()


MEGATRON = b"MMIDIDX\0\0" + (1).to_bytes(8, "little")


@pytest.mark.parametrize(
  "content, word",
  [
    (buffer(np.save, GPT2.astype(np.uint16)), "NumPy array"),
    (buffer(np.savez, GPT2.astype(np.uint16)), "zip archive"),
    (gzip.compress(GPT2.astype(np.uint16).tobytes()), "gzip"),
    (bz2.compress(GPT2.astype(np.uint16).tobytes()), "bzip2"),
    (lzma.compress(GPT2.astype(np.uint16).tobytes()), "xz"),
    *((pickle.dumps(GPT2.tolist(), protocol), "pickle") for protocol in (2, 3, 4, 5)),
    (b"PAR1\x15\x04" + bytes(90), "Parquet"),
    (b"ARROW1\0\0" + bytes(90), "Arrow"),
    (b"\xff\xff\xff\xff\x10\x01\0\0\x10\0\0\0" + bytes(90), "Arrow"),
    (b"\x89HDF\r\n\x1a\n" + bytes(90), "HDF5"),
    (b'\x40\0\0\0\0\0\0\0{"weight":' + bytes(91), "safetensors"),
    (MEGATRON + bytes([8]) + bytes(91), "Megatron"),
    (b'{"text": "It was the best of times."}\n' * 9, "text"),
    ("Привет, мир! ".encode() * 300, "text"),
  ],
)
def test_files_of_other_programs(tmp_path, content, word):
  one_line(ValueError, lambda: loaded(tmp_path, content, 65536), "train.bin", word)


def test_type_in_megatrons_index(tmp_path):
  tokens = GPT2 + 200_000  # without upper halves of 0, which would show the type
  for code, name in (5, "int64"), (8, "uint16"):
    (tmp_path / "train.idx").write_bytes(MEGATRON + bytes([code]) + bytes(16))
    content = tokens.astype("uint32").tobytes()
    one_line(ValueError, lambda c=content: loaded(tmp_path, c, 300_000, dtype="uint32"), "train.idx", name)
  (tmp_path / "train.idx").write_bytes(MEGATRON + bytes([4]) + bytes(16))
  assert loaded(tmp_path, tokens.astype("int32").tobytes(), 300_000, dtype="uint32").train.size == 899


def test_likely_type_of_tokens_beyond_the_vocabulary(tmp_path):
  for content, vocabulary, dtype, word in (
    (RNG.integers(0, 65, 500).astype(np.uint8).tobytes(), 65, "uint16", "like uint8"),
    (GPT2.astype("uint16").tobytes(), 50257, "uint32", "like uint16"),
    (RNG.integers(0, 1000, 500).astype(">u2").tobytes(), 1000, "uint16", "like big-endian uint16"),
  ):
    one_line(ValueError, lambda c=content, v=vocabulary, d=dtype: loaded(tmp_path, c, v, dtype=d), word)
