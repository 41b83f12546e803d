"""Images from .npz and idx files: values, and errors for malformed files."""

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.data_files import everything, examples, idx_bytes, one_line, write_idx, write_npz

from ddl import memory
from ddl.data import DATA, source

# npz


def test_npz_pixels_and_test_split(tmp_path):
  images, labels = examples(62)
  data = DATA["npz"](path=write_npz(tmp_path, x=images, y=labels[:, None]))
  assert (data.train.size, data.test.size) == (52, 10)
  x = np.concatenate([everything(data.train)["x"], everything(data.test)["x"]])
  y = np.concatenate([everything(data.train)["y"], everything(data.test)["y"]])
  back = np.rint((x[..., 0] + 1) * 127.5).astype(np.uint8)
  where = [int(np.flatnonzero((images == image).all((1, 2)))[0]) for image in back]
  assert sorted(where) == list(range(62)) and where != sorted(where)
  np.testing.assert_array_equal(y, labels[where])
  np.testing.assert_array_equal(source.pixels(np.array([[[0, 255]]], np.uint8)).ravel(), np.float32([-1, 1]))


def test_npz_with_a_test_set(tmp_path):
  (x, y), (test_x, test_y) = examples(20, (4, 4, 3)), examples(7, (4, 4, 3), seed=1)
  test_y[0] = 9
  data = DATA["npz"](path=write_npz(tmp_path, x_train=x, y_train=y, x_test=test_x, y_test=test_y))
  assert (data.train.size, data.test.size, data.meta["num_outputs"]) == (20, 7, 10)
  assert data.meta["shape"] == (4, 4, 3)
  np.testing.assert_array_equal(data.test.labels, test_y)


def test_npz_floating_point_is_not_scaled(tmp_path):
  x = np.random.default_rng(0).standard_normal((12, 6))
  data = DATA["npz"](path=write_npz(tmp_path, x=x, y=np.arange(12) % 2))
  result = np.concatenate([everything(data.train)["x"], everything(data.test)["x"]])
  np.testing.assert_array_equal(np.sort(result, axis=0), np.sort(x.astype(np.float32), axis=0))


@pytest.mark.parametrize(
  "change, words",
  [
    ({"image": None}, ["must be image and label", "got label"]),
    ({"label": None}, ["got image"]),
    ({"label": np.zeros(29, int)}, ["30", "29 labels"]),
    ({"label": np.zeros(30)}, ["float64"]),
    ({"label": np.eye(10, dtype=int)[np.arange(30) % 10]}, ["one-hot", "[30, 10]"]),
    ({"label": np.full(30, -1)}, ["got -1 at index 0", "negative"]),
    ({"label": np.where(np.arange(30) == 7, -100, 1)}, ["got -100 at index 7", "Ignored labels"]),
    ({"label": np.where(np.arange(30) == 7, 0.7, 1)}, ["got 0.7 at index 7"]),
    ({"label": np.arange(30) > 7}, ["bool", "np.int32"]),
    ({"label": np.eye(30)}, ["one-hot", "[30, 30]", "argmax"]),
    ({"image": np.zeros((30, 5, 4), np.int64)}, ["int64"]),
    ({"image": np.array([{}] * 30)}, ["must be readable"]),
    ({"image": np.zeros((0, 5, 4), np.uint8), "label": np.zeros(0, int)}, ["no examples"]),
    ({"image": np.zeros((5, 5, 4), np.uint8), "label": np.zeros(5, int)}, ["at least 6", "got 5"]),
  ],
)
def test_npz_malformed(tmp_path, change, words):
  images, labels = examples(30)
  arrays = {"image": images, "label": labels, **change}
  path = write_npz(tmp_path, **{key: value for key, value in arrays.items() if value is not None})
  one_line(ValueError, lambda: DATA["npz"](path=path), path, *words)


def test_npz_with_another_format(tmp_path):
  (tmp_path / "a.npz").write_text("not an archive")
  one_line(ValueError, lambda: DATA["npz"](path=str(tmp_path / "a.npz")), "must be a .npz file")
  path = write_npz(tmp_path, **dict(zip(("image", "label"), examples(30), strict=True)))
  content = bytearray(Path(path).read_bytes())
  content[200:400] = bytes(200)  # damages the first array, but not the directory at the end
  (tmp_path / "b.npz").write_bytes(content)
  one_line(ValueError, lambda: DATA["npz"](path=str(tmp_path / "b.npz")), "must be readable")


PIXELS, LABELS = examples(40, (8, 6, 1))


@pytest.mark.parametrize(
  "train, test, words",
  [
    (PIXELS, (PIXELS / 255).astype(np.float32), ["uint8", "float32"]),
    (PIXELS / 255, (PIXELS / 255).astype(np.float32), ["float64", "float32"]),
    (PIXELS / 1, PIXELS / 255, ["range", "0 to 255", "0 to 1"]),
    (PIXELS / 255, PIXELS / 1, ["range", "0 to 1", "0 to 255"]),
    (PIXELS / 127.5 - 1, PIXELS / 255, ["range", "-1 to 1", "0 to 1"]),
    (PIXELS, np.moveaxis(PIXELS, 3, 1), ["[8, 6, 1]", "[1, 8, 6]"]),
  ],
)
def test_npz_with_different_parts(tmp_path, train, test, words):
  path = write_npz(tmp_path, x_train=train, y_train=LABELS, x_test=test, y_test=LABELS)
  one_line(ValueError, lambda: DATA["npz"](path=path), path, "x_test", "x_train", *words)


def test_npz_with_few_or_dim_test_images(tmp_path):
  dim = np.minimum(PIXELS, 1) / 1
  for train, test in ((PIXELS / 1, dim[:8]), (PIXELS / 1, np.zeros((40, 8, 6, 1))), (PIXELS / 255, PIXELS / 300)):
    path = write_npz(tmp_path, x_train=train, y_train=LABELS, x_test=test, y_test=LABELS[: len(test)])
    assert DATA["npz"](path=path).test.size == len(test)


@pytest.mark.parametrize("channels", [1, 3])
def test_npz_with_channels_first(tmp_path, channels):
  images, labels = examples(30, (channels, 8, 6))
  path = write_npz(tmp_path, x=images, y=labels)
  assert DATA["npz"](path=path).meta["shape"] == (channels, 8, 6)  # valid for a dense network
  for key, value in {"augment": "crop_flip", "normalize": "channels"}.items():
    words = f"config.data.{key}", f"[{channels}, 8, 6]", "moveaxis"
    one_line(ValueError, lambda change={key: value}: DATA["npz"](path=path, **change), *words)


def test_warning_for_npz_without_label_0(tmp_path):
  with pytest.warns(UserWarning, match="label 0"):
    data = DATA["npz"](path=write_npz(tmp_path, x=PIXELS, y=LABELS + 1))
  assert data.meta["num_outputs"] == 4


def npy(shape, content):
  out = io.BytesIO()
  np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
  return out.getvalue() + content


def write_archive(folder, **members):
  with zipfile.ZipFile(folder / "set.npz", "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(f"{name}.npy", content)
  return str(folder / "set.npz")


def test_npz_too_large_for_memory(tmp_path, monkeypatch):
  """8 MB of images become 40 MB; nothing is unpacked if they do not fit or the headers do not agree."""
  monkeypatch.setattr(memory, "total", lambda: 36 * 10**6)
  monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("unpacked"))
  path = write_archive(tmp_path, x=npy((8000, 1000, 1), bytes(8 * 10**6)), y=npy((8000,), bytes(8000)))
  one_line(ValueError, lambda: DATA["npz"](path=path), path, "0.0 GB")
  path = write_archive(tmp_path, x=npy((10**12, 1000), bytes(1000)), y=npy((2,), bytes(2)))
  one_line(ValueError, lambda: DATA["npz"](path=path), path, "unpacks to", "1,000,000,000,000,128")
  path = write_archive(tmp_path, x=npy((2,), bytes(10**6)), y=npy((2,), bytes(2)))
  one_line(ValueError, lambda: DATA["npz"](path=path), path, "unpacks to 1,000,128 bytes", "130")


@pytest.mark.parametrize("name", ["npz", "idx", "text"])
def test_missing_path(tmp_path, name):
  one_line(FileNotFoundError, lambda: DATA[name](path=str(tmp_path / "absent")), "absent", "config.data.path must be")
  if name != "text":
    one_line(ValueError, lambda: DATA[name](), "config.data.path must be")


# idx


@pytest.mark.parametrize("dot, zipped", [(False, False), (True, True)])
def test_idx(tmp_path, dot, zipped):
  parts = write_idx(tmp_path, dot, zipped)
  data = DATA["idx"](path=str(tmp_path))
  for part, (images, labels) in zip((data.train, data.test), parts.values(), strict=True):
    np.testing.assert_array_equal(everything(part)["x"], source.pixels(images))
    np.testing.assert_array_equal(everything(part)["y"], labels)


@pytest.mark.parametrize(
  "content, words",
  [
    (idx_bytes(examples(20)[0], magic=0x0D03), ["images", "00000d03"]),
    (idx_bytes(examples(20)[1]), ["images", "3 dimensions", "got a header of 16 bytes"]),
    (idx_bytes(examples(20)[0])[:-1], ["415 bytes", "416"]),
    (idx_bytes(examples(20)[0]) + b"0", ["417 bytes", "416"]),
    (idx_bytes(examples(20)[0])[:10], ["10 bytes"]),
    (b"", ["must be an idx file", "0 bytes"]),
    (idx_bytes(examples(19)[0]), ["[19, 5, 4]", "20 labels"]),
    (idx_bytes(examples(20, (5, 5))[0]), ["[5, 5, 1]", "[5, 4, 1]"]),
  ],
)
def test_idx_malformed(tmp_path, content, words):
  write_idx(tmp_path)
  (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
  one_line(ValueError, lambda: DATA["idx"](path=str(tmp_path)), str(tmp_path), *words)


def test_idx_larger_than_its_header_or_memory(tmp_path, monkeypatch):
  write_idx(tmp_path, zipped=True)
  file = tmp_path / "train-images-idx3-ubyte.gz"
  file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + bytes(10**7)))
  one_line(ValueError, lambda: DATA["idx"](path=str(tmp_path)), str(file), "417 bytes or more", "416")
  file.write_bytes(gzip.compress(idx_bytes(np.zeros((8000, 20, 50), np.uint8))))
  monkeypatch.setattr(memory, "total", lambda: 36 * 10**6)
  one_line(ValueError, lambda: DATA["idx"](path=str(tmp_path)), str(file), "GB")


def test_idx_missing_and_truncated(tmp_path):
  write_idx(tmp_path, zipped=True)
  file = tmp_path / "t10k-labels-idx1-ubyte.gz"
  file.write_bytes(file.read_bytes()[:-6])
  one_line(ValueError, lambda: DATA["idx"](path=str(tmp_path)), "t10k-labels", "must be readable")
  file.unlink()
  one_line(FileNotFoundError, lambda: DATA["idx"](path=str(tmp_path)), "t10k-labels-idx1-ubyte")
