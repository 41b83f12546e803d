"""Hugging Face's data sets: splits, columns, images and folders."""

import numpy as np
import pytest
from PIL import Image

from ddl.config.resolve import resolve
from ddl.data.hugging_face import from_hugging_face, hugging_face
from ddl.errors import OptionError

datasets = pytest.importorskip("datasets")
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 6, 6)).astype(np.uint8)
CLASSES = np.arange(24) % 3


def images(**columns):
  """Return 24 gray images with classes."""
  columns = {"image": [Image.fromarray(image) for image in PIXELS], "label": CLASSES.tolist(), **columns}
  return datasets.Dataset.from_dict(columns).cast_column("label", datasets.ClassLabel(num_classes=4))


def splits():
  return datasets.DatasetDict({"train": images().select(range(18)), "test": images().select(range(18, 24))})


def test_images_are_decoded_and_scaled_as_in_other_data_sets():
  data = from_hugging_face(splits(), validation=0.5)
  assert data.validation is not None
  assert (data.train.size, data.validation.size, data.test.size) == (9, 9, 6)
  assert data.meta["shape"] == (6, 6, 1) and data.meta["num_outputs"] == 4
  batch = data.test.take(np.array([0, 5]))
  np.testing.assert_allclose(batch["x"][..., 0], PIXELS[[18, 23]] / 127.5 - 1, atol=1e-6)
  np.testing.assert_array_equal(batch["y"], CLASSES[[18, 23]])
  assert from_hugging_face(splits(), size=4).train.take(np.arange(2))["x"].shape == (2, 4, 4, 1)


def test_a_folder_and_an_object_give_the_same_examples(tmp_path):
  splits().save_to_disk(tmp_path / "set")
  one, two = hugging_face(dataset=str(tmp_path / "set")), from_hugging_face(splits())
  for name in ("train", "test"):
    batches = [getattr(data, name).take(np.arange(6)) for data in (one, two)]
    np.testing.assert_array_equal(batches[0]["x"], batches[1]["x"])


def test_arrays_and_a_single_split():
  columns = {"x": PIXELS.reshape(24, 36) / 255, "y": CLASSES}
  data = from_hugging_face(datasets.Dataset.from_dict(columns))
  assert (data.train.size, data.test.size, data.meta["shape"]) == (20, 4, (36,))
  assert resolve(None, {"data": splits()}).data.name.rpartition(":")[2].startswith("hugging_face_")


def test_unclear_columns_and_unknown_splits_are_errors():
  with pytest.raises(OptionError) as error:
    from_hugging_face(splits(), test_split="validation")
  assert error.value.option == "config.data.test_split"
  two = images(more=[Image.fromarray(image) for image in PIXELS])
  for dataset in (two, images().rename_column("label", "kind").cast_column("kind", datasets.Value("int64"))):
    with pytest.raises(OptionError, match="columns"):
      from_hugging_face(dataset)
  with pytest.raises(OptionError, match=r"config\.data\.dataset"):
    hugging_face()
