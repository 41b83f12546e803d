"""Data sets of tensorflow-datasets, read from array_record files without TensorFlow."""

import io
import json
import sys

import grain
import numpy as np
import pytest
import tensorflow_datasets
from helpers.data_files import one_line
from PIL import Image
from tensorflow_datasets.testing import mocking

from ddl.data import DATA, source

SIZES = {"train": 70, "test": 11}


def image(split, index, shape):
  return np.random.default_rng([len(split), index]).integers(0, 256, shape, dtype=np.uint8)


def label(split, index):
  return (index * 7 + len(split)) % 5


class Small(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
  VERSION = tensorflow_datasets.core.Version("1.0.0")
  name = "small_images"
  shapes = ((6, 4, 3),)  # used in rotation
  declared = (6, 4, 3)
  keys = ("image", "label")

  def _info(self):
    kinds = tensorflow_datasets.features
    pair = {"image": kinds.Image(shape=self.declared), "label": kinds.ClassLabel(num_classes=5)}
    features = kinds.FeaturesDict(pair)
    return tensorflow_datasets.core.DatasetInfo(builder=self, features=features, supervised_keys=self.keys)

  def _split_generators(self, dl_manager):
    return {split: self._generate_examples(split) for split in SIZES}

  def _generate_examples(self, split):
    for index in range(SIZES[split]):
      file = io.BytesIO()  # a PNG file, because tensorflow-datasets needs TensorFlow to encode an array
      Image.fromarray(image(split, index, self.shapes[index % len(self.shapes)])).save(file, "PNG")
      file.seek(0)
      yield index, {"image": file, "label": label(split, index)}


class Ragged(Small, skip_registration=True):
  name = "ragged_images"
  shapes = ((6, 4, 3), (5, 4, 3))
  declared = (None, None, 3)


class Table(Small, skip_registration=True):
  name = "table"
  keys = ("text", "label")

  def _info(self):
    kinds = tensorflow_datasets.features
    features = kinds.FeaturesDict({"text": kinds.Text(), "label": kinds.ClassLabel(num_classes=5)})
    return tensorflow_datasets.core.DatasetInfo(builder=self, features=features, supervised_keys=self.keys)

  def _generate_examples(self, split):
    for index in range(SIZES[split]):
      yield index, {"text": str(index), "label": label(split, index)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp("tfds")
  for builder in (Small, Ragged, Table):
    builder(data_dir=root, file_format="array_record").download_and_prepare()
  return str(root)


def load(dataset, folder, **settings):
  return DATA["tfds"](dataset=dataset, data_dir=str(folder), **settings)


def check_split(part, split):
  """Check the images, labels and order of a permutation of all examples; return their sorted indices."""
  indices = np.random.default_rng(0).permutation(part.size).repeat(2)
  batch = part.take(indices)
  assert batch["x"].dtype == np.float32 and batch["y"].dtype == part.labels.dtype == np.int32
  np.testing.assert_array_equal(batch["y"], part.labels[indices])
  written = source.pixels(np.stack([image(split, index, (6, 4, 3)) for index in range(SIZES[split])]))
  which = [int(np.flatnonzero((written == x).all((1, 2, 3)))[0]) for x in batch["x"]]
  np.testing.assert_array_equal(which[::2], which[1::2])
  np.testing.assert_array_equal(batch["y"], [label(split, index) for index in which])
  return sorted(which[::2])


def test_reads_prepared_data_sets(folder):
  data = load("small_images", folder)
  assert (data.train.size, data.test.size, data.validation) == (70, 11, None)
  assert check_split(data.train, "train") == list(range(70))
  assert check_split(data.test, "test") == list(range(11))
  expected = {"task": "classification", "shape": (6, 4, 3), "num_outputs": 5}
  assert expected.items() <= data.meta.items() and "small_images/1.0.0" in data.meta["description"]
  assert "tensorflow" not in sys.modules


def test_single_examples(folder):
  train = load("small_images", folder).train
  many = train.take(np.arange(70))
  for index in (0, 33, 69):
    np.testing.assert_array_equal(train.take(np.array([index]))["x"][0], many["x"][index])


def test_slices_and_validation(folder):
  data = load("small_images", folder, train_split="train[:50%]", validation=0.2)
  assert (data.train.size, data.validation.size) == (28, 7)
  assert not set(check_split(data.train, "train")) & set(check_split(data.validation, "train"))


def test_grain_reads_the_records(folder, monkeypatch):
  seen = []
  real = grain.MapDataset.source
  monkeypatch.setattr(grain.MapDataset, "source", lambda pieces: seen.append(pieces) or real(pieces))
  data = load("small_images", folder)
  seen.clear()
  data.train.take(np.arange(69, -1, -1))
  assert [index for pieces in seen for piece in pieces for index in piece] == list(range(69, -1, -1))


def test_mock_data(monkeypatch):
  # tensorflow-datasets 4.9.10 mocks the reader's __getitems__ with a function that wrongly expects `self`.
  monkeypatch.setattr(mocking, "_getitems", lambda keys, generator: [generator[key] for key in keys])
  with tensorflow_datasets.testing.mock_data(num_examples=16):
    data = DATA["tfds"](dataset="mnist")
    records = tensorflow_datasets.builder("mnist").as_data_source("train")
  batch = data.train.take(np.arange(16))
  assert data.meta["shape"] == (28, 28, 1) and data.meta["num_outputs"] == 10
  np.testing.assert_array_equal(batch["x"], source.pixels(np.stack([records[i]["image"] for i in range(16)])))
  np.testing.assert_array_equal(batch["y"], [records[i]["label"] for i in range(16)])


def test_data_set_that_is_not_prepared(tmp_path):
  one_line(
    ValueError,
    lambda: load("mnist", tmp_path),
    f"mnist must be prepared in {tmp_path}",
    f'tfds.builder("mnist", data_dir="{tmp_path}", file_format="array_record").download_and_prepare()',
  )
  assert not list(tmp_path.iterdir())


def test_data_set_prepared_for_tensorflow(tmp_path):
  Small(data_dir=tmp_path, file_format="array_record").download_and_prepare()
  file = tmp_path / "small_images/1.0.0/dataset_info.json"
  info = json.loads(file.read_text())
  file.write_text(json.dumps({**info, "fileFormat": "tfrecord"}))
  one_line(
    ValueError,
    lambda: load("small_images", tmp_path),
    "prepared in array_record format",
    "tfrecord",
    f'tfds.builder("small_images", data_dir="{tmp_path}", file_format="array_record").download_and_prepare()',
  )


def test_unknown_names(folder):
  one_line(ValueError, lambda: load("cifar11", folder), "'cifar11'", "Did you mean", "cifar10")
  one_line(ValueError, lambda: load("a b", folder), "'a b'")
  one_line(ValueError, lambda: load("mnist:9.9.9", folder), "9.9.9", "3.0.1")
  one_line(ValueError, lambda: load("small_images", folder, test_split="dev"), "'dev'", "test")


def test_data_sets_of_another_kind(folder):
  one_line(ValueError, lambda: load("ragged_images", folder), "config.data.size", "6 x 4", "5 x 4")
  one_line(ValueError, lambda: load("table", folder), "must be an image-classification data set", "text")


def test_images_of_any_size_are_resized(folder):
  data = load("ragged_images", folder, size=4)
  assert data.meta["shape"] == (4, 4, 3) and (data.train.size, data.test.size) == (70, 11)
  batch = data.test.take(np.arange(11))
  written = [Image.fromarray(image("test", index, Ragged.shapes[index % 2])) for index in range(11)]
  parts = [picture.crop((0, (picture.height - 4) // 2, 4, (picture.height - 4) // 2 + 4)) for picture in written]
  expected = source.pixels(np.stack([np.asarray(part) for part in parts]))
  which = [int(np.flatnonzero((expected == x).all((1, 2, 3)))[0]) for x in batch["x"]]
  assert sorted(which) == list(range(11))
  np.testing.assert_array_equal(batch["y"], [label("test", index) for index in which])
  one_line(ValueError, lambda: load("ragged_images", folder, size=-1), "tfds.size must be an integer >= 0, got -1.")


def test_augmentation_of_decoded_images(folder):
  whole = load("small_images", folder).train.take(np.arange(70))
  for settings in ({"augment": "crop_flip"}, {"augment": "resized_crop"}, {"augment": "resized_crop", "size": 5}):
    train = load("small_images", folder, **settings).train
    rngs = [np.random.default_rng(k) for k in range(2)]
    drawn = train.augmented(rngs, np.arange(70).reshape(2, 35))
    np.testing.assert_array_equal(drawn["y"], whole["y"])
    assert drawn["x"].shape == (70, *((5, 5, 3) if "size" in settings else (6, 4, 3)))
    again = train.augmented([np.random.default_rng(1)], np.arange(35, 70)[None])
    np.testing.assert_array_equal(drawn["x"][35:], again["x"])
    assert not np.array_equal(drawn["x"], train.take(np.arange(70))["x"])


def test_truncated_file(tmp_path):
  Small(data_dir=tmp_path, file_format="array_record").download_and_prepare()
  (file,) = tmp_path.glob("small_images/1.0.0/*train.array_record*")
  file.write_bytes(file.read_bytes()[:100])
  one_line(
    ValueError,
    lambda: load("small_images", tmp_path),
    "split 'train'",
    "must be readable",
  )
