"""Augmentation and normalization: values, and dependence on only (seed, worker, step)."""

import numpy as np
import pytest
from helpers.data_files import everything, examples, one_line, write_npz
from PIL import Image

from ddl.data import DATA, augmentation, source
from ddl.data.sampling import ExampleSampler, batches, round_batches

KEYS = ("none", "crop_flip", "resized_crop")


def images(count, height=8, width=6, channels=3):
  return np.random.default_rng(1).standard_normal((count, height, width, channels)).astype(np.float32)


def changed(change, x, seed=0):
  batch = {"x": x, "y": np.arange(len(x))}
  out = change(np.random.default_rng(seed), batch)
  assert out["x"].shape == x.shape and out["x"].dtype == x.dtype
  np.testing.assert_array_equal(out["y"], batch["y"])
  return out["x"]


def test_crop_is_a_window_of_the_padded_image():
  x = images(400)
  padded, result = np.full((400, 12, 10, 3), 7.0, np.float32), set()
  padded[:, 2:-2, 2:-2] = x
  for whole, part in zip(padded, changed(augmentation.crop(2, 7.0), x), strict=True):
    places = [(i, j) for i in range(5) for j in range(5) if np.array_equal(whole[i : i + 8, j : j + 6], part)]
    assert len(places) == 1
    result |= {*places}
  assert len(result) == 25  # all places occur in 400 draws


def test_flip_mirrors_half_of_the_images():
  x = images(400)
  out = changed(augmentation.flip, x)
  mirrored = np.array([np.array_equal(a[:, ::-1], b) for a, b in zip(x, out, strict=True)])
  np.testing.assert_array_equal(out[~mirrored], x[~mirrored])
  assert 160 < mirrored.sum() < 240


@pytest.mark.parametrize("height, width", [(40, 60), (500, 375), (9, 9)])
def test_boxes_are_within_the_image_and_the_bounds(height, width):
  result = augmentation.boxes(augmentation.uniform(np.random.default_rng(0), 2000), height, width)
  top, left, tall, wide = result.T
  assert (result[:, :2] >= 0).all() and (top + tall <= height).all() and (left + wide <= width).all()
  area = tall * wide / (height * width)
  low, high = (np.log((wide + way * 0.5) / (tall - way * 0.5)) for way in (-1, 1))  # bounds before rounding
  assert (high >= np.log(3 / 4)).all() and (low <= np.log(4 / 3)).all()
  assert area.min() < 0.15 and area.max() > 0.85 and (area > 0.06).all()
  assert top.max() > 0.5 * height and left.max() > 0.5 * width and top.min() == left.min() == 0


def test_box_is_central_if_no_draw_fits():
  draws = augmentation.uniform(np.random.default_rng(0), 5)
  np.testing.assert_array_equal(augmentation.boxes(draws, 10, 1000, scale=(0.9, 1.0)), [[0, 493, 10, 13]] * 5)
  np.testing.assert_array_equal(augmentation.boxes(draws, 1000, 9, scale=(0.9, 1.0)), [[494, 0, 12, 9]] * 5)


def test_resized_crop_equals_pillows():
  x, rng = images(30, 12, 16), np.random.default_rng(0)
  out = changed(augmentation.random_resized_crop(), x)
  for image, box, got in zip(x, augmentation.boxes(augmentation.uniform(rng, 30), 12, 16), out, strict=True):
    top, left, tall, wide = box
    part = np.ascontiguousarray(image[top : top + tall, left : left + wide])
    channels = [Image.fromarray(part[..., k]).resize((16, 12), Image.Resampling.BILINEAR) for k in range(3)]
    np.testing.assert_allclose(got, np.stack([np.asarray(channel) for channel in channels], -1), rtol=1e-5, atol=1e-5)


@pytest.fixture
def load(tmp_path):
  x, y = examples(240, (8, 6, 3))
  path = write_npz(tmp_path, image=x, label=y)
  return lambda **settings: DATA["npz"](path=path, **settings)


@pytest.mark.parametrize("augment", KEYS[1:])
def test_batches_depend_only_on_seed_worker_and_step(load, augment):
  train = load(augment=augment).train
  plain = load().train

  def order(seed=3):
    return ExampleSampler([np.arange(200)] * 4, batch=5, seed=seed)

  whole = batches(train, order(), range(4), 0, 6)
  assert whole["x"].shape == (4, 6, 5, 8, 6, 3)
  np.testing.assert_array_equal(whole["y"], batches(plain, order(), range(4), 0, 6)["y"])  # the same examples
  for rounds, steps in (([(2, 3), (0, 1)], 2), ([(3, 5)], 1)):
    part = round_batches(train, order(), rounds, steps)
    for k, (worker, first) in enumerate(rounds):
      np.testing.assert_array_equal(part["x"][k], whole["x"][worker, first : first + steps])
  same = source.subset(train, np.full(200, 7))  # 200 times the same image
  again = batches(same, order(), range(4), 0, 6)
  assert (again["y"] == train.labels[7]).all()
  drawn = again["x"].reshape(24, -1)
  assert len({batch.tobytes() for batch in drawn}) == 24
  assert not np.array_equal(drawn, batches(same, order(4), range(4), 0, 6)["x"].reshape(24, -1))


def test_only_training_examples_are_augmented(load):
  plain, data = load(validation=0.2), load(validation=0.2, augment="crop_flip")
  for name in ("train", "test", "validation"):
    ours, before = getattr(data, name), getattr(plain, name)
    np.testing.assert_array_equal(everything(ours)["x"], everything(before)["x"])
    assert (ours.augmented is not None) == (name == "train")
  taken = data.train.augmented([np.random.default_rng(0)] * 2, np.arange(data.train.size).reshape(2, -1))
  np.testing.assert_array_equal(taken["y"], plain.train.labels)


def test_augmentations_are_composed():
  def add(rng, batch):
    return {**batch, "x": batch["x"] + rng.random()}

  def double(rng, batch):
    return {**batch, "x": batch["x"] * 2}

  plain = source.in_memory(np.zeros((6, 2)), np.arange(6))
  changed = augmentation.with_augmentation(augmentation.with_augmentation(plain, add), double)
  order = ExampleSampler([np.arange(6)], batch=2, seed=5)
  expected = [2 * np.random.default_rng(np.random.SeedSequence((5, 0, step, 1))).random() for step in range(3)]
  np.testing.assert_array_equal(batches(changed, order, [0], 0, 3)["x"][0, :, 0, 0], expected)


@pytest.mark.parametrize("augment", KEYS)
def test_normalization_by_the_channels_of_the_training_set(load, augment):
  plain, data = load(validation=0.2), load(validation=0.2, augment=augment, normalize="channels")
  x = everything(data.train)["x"]
  np.testing.assert_allclose(x.mean((0, 1, 2)), 0, atol=1e-5)
  np.testing.assert_allclose(x.std((0, 1, 2)), 1, rtol=1e-5)
  raw = everything(plain.train)["x"].astype(np.float64)
  mean, deviation = raw.mean((0, 1, 2)), raw.std((0, 1, 2))
  for ours, before in ((data.test, plain.test), (data.validation, plain.validation)):
    assert ours.size and before.size
    expected = (everything(before)["x"] - mean) / deviation
    np.testing.assert_allclose(everything(ours)["x"], expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(data.meta["mean"], mean, rtol=1e-6)


def test_padding_is_black_after_normalization(load):
  data = load(augment="crop_flip", normalize="imagenet")
  assert data.train.augmented
  x = data.train.augmented([np.random.default_rng(0)], np.arange(100)[None])["x"]
  black = -np.array([0.485, 0.456, 0.406]) / np.array([0.229, 0.224, 0.225])
  corner = np.isclose(x[:, 0, 0], black, atol=1e-4).all(axis=1)
  assert corner.mean() > 0.5  # the corner is padding in 56 of 81 places


def test_invalid_names_and_examples(load, tmp_path):
  one_line(ValueError, lambda: load(augment="flips"), "config.data.augment", "'flips'", "crop_flip")
  one_line(ValueError, lambda: load(normalize="imagnet"), "config.data.normalize", "channels")
  path = write_npz(tmp_path, image=np.zeros((12, 5), np.float32), label=np.arange(12) % 2)
  for wrong in ({"augment": "crop_flip"}, {"normalize": "channels"}):
    one_line(ValueError, lambda wrong=wrong: DATA["npz"](path=path, **wrong), f"config.data.{next(iter(wrong))}", "[5]")
  path = write_npz(tmp_path, image=np.zeros((12, 5, 5, 1), np.uint8), label=np.arange(12) % 2)
  one_line(ValueError, lambda: DATA["npz"](path=path, normalize="imagenet"), "config.data.normalize", "3 channels")
