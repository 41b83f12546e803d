"""Image folders: classes, decoding, sizes, random-resized crops, and errors for invalid folders."""

import os

import numpy as np
import pytest
from helpers.data_files import everything, one_line
from helpers.image_folders import picture, write_folder
from PIL import Image

from ddl.data import DATA, augmentation, source
from ddl.data.sampling import ExampleSampler, batches

CLASSES = ("ant", "bee", "cat")


def load(folder, **settings):
  return DATA["image_folder"](path=str(folder), **settings)


def test_train_and_test_folders(tmp_path):
  test = "val"
  write_folder(tmp_path / "train", CLASSES, 4, (6, 5))
  write_folder(tmp_path / test, CLASSES[:2], 2, (6, 5), seed=1)
  (tmp_path / "train" / "ant" / "notes.txt").write_text("no image")
  (tmp_path / "train" / "bee" / "more").mkdir()
  picture((6, 5), 77).save(tmp_path / "train" / "bee" / "more" / "x.PNG")
  data = load(tmp_path)
  assert (data.train.size, data.test.size, data.validation) == (13, 4, None)
  assert data.meta["classes"] == CLASSES and data.meta["num_outputs"] == 3 and data.meta["shape"] == (6, 5, 3)
  np.testing.assert_array_equal(data.train.labels, [0] * 4 + [1] * 5 + [2] * 4)
  np.testing.assert_array_equal(data.test.labels, [0, 0, 1, 1])
  for part, folder, names in ((data.train, "train", CLASSES), (data.test, test, CLASSES[:2])):
    files = [file for name in names for file in sorted((tmp_path / folder / name).rglob("*.[pP]*"))]
    files.sort(key=lambda file: (file.parts[:-1], file.name))
    expected = source.pixels(np.stack([np.asarray(Image.open(file)) for file in files]))
    np.testing.assert_array_equal(everything(part)["x"], expected)
    np.testing.assert_array_equal(everything(part)["y"], part.labels)


@pytest.mark.parametrize(
  "train, test",
  [
    ("Training", "Testing"),
    ("TRAIN", "Val"),
    ("trainset", "test_set"),
    ("train", "dev"),
    ("Train", "Valid"),
    ("train", "validation"),
    ("trains", "tests"),
    ("training", "evaluation"),
  ],
)
def test_names_of_splits(tmp_path, train, test):
  write_folder(tmp_path / train, CLASSES, 4, (6, 5))
  write_folder(tmp_path / test, CLASSES, 2, (6, 5), seed=1)
  write_folder(tmp_path / "__MACOSX" / "train", CLASSES, 2, (6, 5))
  data = load(tmp_path)
  assert data.meta["classes"] == CLASSES and (data.train.size, data.test.size) == (12, 6)


def test_class_with_the_name_of_a_split(tmp_path):
  write_folder(tmp_path, ("car", "train", "test"), 8, (6, 5))
  assert load(tmp_path).meta["classes"] == ("car", "test", "train")


@pytest.mark.parametrize(
  "names", [("seg_train", "seg_test"), ("train2017", "val2017"), ("test", "val"), ("Train", "training", "test")]
)
def test_ambiguous_names_of_splits(tmp_path, names):
  for name in names:
    write_folder(tmp_path / name, CLASSES, 2, (6, 5))
  one_line(ValueError, lambda: load(tmp_path), str(tmp_path), *names[:2])


def test_hidden_files_and_folders_are_skipped(tmp_path):
  for split in ("train", "test"):
    write_folder(tmp_path / split, (*CLASSES, ".ipynb_checkpoints", "__MACOSX"), 2, (6, 5))
    picture((6, 5), 1).save(tmp_path / split / "ant" / ".0.png")
    write_folder(tmp_path / split / "ant", (".thumbnails", "@eaDir"), 2, (6, 5))
    (tmp_path / split / "bee" / "._0.png").write_bytes(b"resource fork")
    (tmp_path / split / "bee" / ".DS_Store").write_bytes(b"")
  write_folder(tmp_path / ".git", CLASSES, 2, (6, 5))
  with pytest.warns(UserWarning, match="skipped 12 hidden files or folders$"):
    data = load(tmp_path)
  assert data.meta["classes"] == CLASSES and (data.train.size, data.test.size) == (6, 6)
  write_folder(tmp_path / "flat", (*CLASSES, ".x"), 6, (6, 5))
  with pytest.warns(UserWarning, match="skipped 1 hidden"):
    assert load(tmp_path / "flat").meta["classes"] == CLASSES


def test_links_are_followed_once(tmp_path):
  write_folder(tmp_path / "far", ("more", "bee"), 3, (6, 5), seed=5)
  write_folder(tmp_path / "set", ("ant", "cat"), 4, (6, 5))
  (tmp_path / "set" / "bee").symlink_to(tmp_path / "far" / "bee")  # a class
  ant = tmp_path / "set" / "ant"
  (ant / "0a.png").symlink_to(tmp_path / "far" / "more" / "0.png")
  (ant / "inner").symlink_to("../../far/more")
  (ant / "inner again").symlink_to("../../far/more")
  for name, target in (("self", "."), ("above", ".."), ("root", "/"), ("one", "two"), ("two", "one"), ("x.png", "no")):
    (ant / name).symlink_to(target)
  with pytest.warns(UserWarning, match="skipped 3 broken links, 4 links to folders already read$"):
    data = load(tmp_path / "set")
  assert data.train.size + data.test.size == (4 + 1 + 3) + 3 + 4
  labels = np.concatenate([data.train.labels, data.test.labels])
  assert np.bincount(labels).tolist() == [8, 3, 4]


def test_pipes_and_devices_are_skipped(tmp_path):
  """Reading from them would wait forever."""
  write_folder(tmp_path, CLASSES, 6, (6, 5))
  os.mkfifo(tmp_path / "ant" / "9.png")
  (tmp_path / "bee" / "9.png").symlink_to("/dev/zero")
  (tmp_path / "cat" / "notes.txt").write_text("no image")
  picture((6, 5), 1).save(tmp_path / "9.png")
  words = "1 files that are not images, 1 images outside of class folders, 2 pipes or devices"
  with pytest.warns(UserWarning, match=f"skipped {words}$"):
    data = load(tmp_path)
  assert (data.train.size, data.test.size) == (15, 3)


def test_warning_for_images_in_both_splits(tmp_path):
  write_folder(tmp_path / "train", CLASSES, 2, (6, 5))
  (tmp_path / "test").symlink_to("train")
  with pytest.warns(UserWarning, match="both the training and the test set"):
    assert load(tmp_path).test.size == 6


def test_single_folder_is_split(tmp_path):
  write_folder(tmp_path, CLASSES, 8, (4, 4))
  data, again = load(tmp_path), load(tmp_path, validation=0.25)
  assert (data.train.size, data.test.size, again.train.size, again.validation.size) == (20, 4, 15, 5)
  parts = np.concatenate([everything(part)["x"] for part in (again.train, again.validation, again.test)])
  assert len({x.tobytes() for x in parts}) == 24
  np.testing.assert_array_equal(everything(data.test)["x"], everything(again.test)["x"])


@pytest.mark.parametrize("shape", [(9, 16), (16, 9), (5, 4)])
def test_images_are_resized_from_their_center(tmp_path, shape):
  write_folder(tmp_path / "train", CLASSES, 1, shape)
  write_folder(tmp_path / "test", CLASSES, 1, shape, seed=1)
  data = load(tmp_path, size=8)
  side = min(shape)
  top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
  for result, name in zip(everything(data.test)["x"], CLASSES, strict=True):
    image = Image.open(tmp_path / "test" / name / "0.png").crop((left, top, left + side, top + side))
    np.testing.assert_array_equal(
      result, source.pixels(np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR))[None])[0]
    )


def test_gray_and_jpeg_images(tmp_path):
  for name in CLASSES:
    (tmp_path / name).mkdir()
    for k in range(4):
      picture((8, 8), k).convert("L").save(tmp_path / name / f"{k}.jpeg")
  assert load(tmp_path).meta["shape"] == (8, 8, 3)
  data = load(tmp_path, channels=1)
  gray = np.asarray(Image.open(tmp_path / "ant" / "0.jpeg"))
  assert any(np.array_equal(source.pixels(gray[None])[0], x) for x in everything(data.train)["x"])


def test_random_resized_crops_of_the_whole_image(tmp_path):
  write_folder(tmp_path / "train", CLASSES, 4, (20, 30))
  write_folder(tmp_path / "test", CLASSES, 1, (20, 30), seed=1)
  data = load(tmp_path, size=8, augment="resized_crop")
  order = ExampleSampler([np.arange(12)] * 2, batch=3, seed=5)
  x = batches(data.train, order, [0, 1], 4, 2)["x"]
  np.testing.assert_array_equal(x[1, 1], batches(data.train, order, [1], 5, 1)["x"][0, 0])
  rng = np.random.default_rng(np.random.SeedSequence((5, 1, 5, 1)))
  images = []
  for index, draw in zip(order.indices(1, 5, 1)[0], augmentation.uniform(rng, 3), strict=True):
    top, left, tall, wide = augmentation.boxes(draw[None], 20, 30)[0].tolist()
    image = Image.open(tmp_path / "train" / CLASSES[index // 4] / f"{index % 4}.png")
    part = image.crop((left, top, left + wide, top + tall)).resize((8, 8), Image.Resampling.BILINEAR)
    images.append(np.asarray(part))
  expected = augmentation.flip(rng, {"x": source.pixels(np.stack(images))})["x"]
  np.testing.assert_array_equal(x[1, 1], expected)
  image = Image.open(tmp_path / "test" / "ant" / "0.png").crop((6, 1, 24, 19))  # 7/8 of 20, rounded
  expected = source.pixels(np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR))[None])[0]
  np.testing.assert_array_equal(everything(data.test)["x"][0], expected)


def test_invalid_folders(tmp_path):
  one_line(ValueError, lambda: load(""), "config.data.path must be")
  one_line(FileNotFoundError, lambda: load(tmp_path / "absent"), "absent", "config.data.path must be")
  one_line(ValueError, lambda: load(tmp_path), str(tmp_path), "no folders", "CLASS")
  (tmp_path / "train").mkdir()
  one_line(ValueError, lambda: load(tmp_path), "train must be two or more", "CLASS", "no folders")
  (tmp_path / "train" / "ant").mkdir()
  one_line(ValueError, lambda: load(tmp_path), "only the folder ant")
  (tmp_path / "train" / "bee").mkdir()
  one_line(ValueError, lambda: load(tmp_path), "train/ant must be a folder with images", ".jpg")
  write_folder(tmp_path / "train", CLASSES, 2, (6, 5))
  one_line(ValueError, lambda: load(tmp_path), "test images of", "test/CLASS", "got only train")
  write_folder(tmp_path / "val", (*CLASSES, "dog"), 2, (5, 5))
  one_line(ValueError, lambda: load(tmp_path), "dog", "val")
  for file in (tmp_path / "val" / "dog").iterdir():
    file.unlink()
  (tmp_path / "val" / "dog").rmdir()
  one_line(ValueError, lambda: load(tmp_path), "differ in size", "config.data.size")
  one_line(ValueError, lambda: load(tmp_path, size=-1), "image_folder.size must be an integer >= 0, got -1.")
  one_line(ValueError, lambda: load(tmp_path, channels=2), "config.data.channels must be 3 or 1, got 2.")
  one_line(ValueError, lambda: load(tmp_path, size=10**7), "GB")
  one_line(ValueError, lambda: load(tmp_path / "val" / "ant" / "0.png"), "got the file")


def test_invalid_images(tmp_path):
  write_folder(tmp_path, CLASSES, 40, (6, 5))
  late = tmp_path / "cat" / "39.png"
  picture((7, 5), 0).save(late)
  data = load(tmp_path)
  one_line(ValueError, lambda: [everything(data.train), everything(data.test)], str(late), "7 x 5", "6 x 5", "224")
  late.write_bytes(b"no image")
  one_line(ValueError, lambda: [everything(data.train), everything(data.test)], str(late), "must be readable")
  Image.fromarray(np.zeros((6, 5), np.uint16)).save(tmp_path / "ant" / "0.png")
  one_line(ValueError, lambda: load(tmp_path), "0.png", "8 bits")
