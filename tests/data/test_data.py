"""The data sets: shapes, types and splits of all of them, values of the text and synthetic ones, invalid settings."""

import ast
import inspect
from pathlib import Path
from typing import get_origin

import numpy as np
import pytest
from helpers.data_files import everything, examples, one_line, write_idx, write_npz, write_tokens
from helpers.image_folders import write_folder

import ddl.data
from ddl.data import DATA
from ddl.ranges import plain

ELSEWHERE = ("tfds", "hugging_face")  # tested in separate files
PLAIN = (int, float, str, bool, tuple[int, ...])


@pytest.fixture
def factories(tmp_path):
  """Map each data set except tfds, which needs preparation, to its factory and settings."""
  images, labels = examples(60)
  labels[:3] = 0, 1, 2
  path = write_npz(tmp_path, image=images, label=labels)
  write_idx(tmp_path)
  write_folder(tmp_path / "images", ("ant", "bee", "cat"), 8, (5, 4))
  settings = {"npz": {"path": path}, "idx": {"path": str(tmp_path)}, "least_squares": {"examples": 64}}
  settings["synthetic"] = {"examples": 64}
  write_tokens(tmp_path / "tokens", np.arange(900) ** 2 % 251, np.arange(90) % 7)
  settings["tokens"] = {"path": str(tmp_path / "tokens"), "length": 8, "vocabulary": 251}
  settings["image_folder"] = {"path": str(tmp_path / "images")}
  return {name: (factory, settings.get(name, {})) for name, factory in DATA.items() if name not in ELSEWHERE}


def test_slow_libraries_are_imported_lazily():
  slow = {"sklearn", "grain", "PIL", "datasets", "tensorflow_datasets", "tensorflow", "tokenizers"}
  for file in Path(inspect.getfile(ddl.data)).parent.glob("*.py"):
    imports = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [getattr(node, "module", None) or alias.name for node in imports for alias in node.names]
    assert not slow & {name.partition(".")[0] for name in names}, file.name


@pytest.mark.parametrize("name", DATA)
def test_settings_are_keyword_only_with_plain_types(name):
  parameters = inspect.signature(DATA[name]).parameters.values()
  assert "validation" in [parameter.name for parameter in parameters]
  for parameter in parameters:
    kind = plain(parameter.annotation)
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY and kind in PLAIN
    assert isinstance(parameter.default, get_origin(kind) or kind)


def test_shapes_types_and_splits(factories):
  for name, (factory, settings) in factories.items():
    data, again = factory(**settings), factory(**settings, validation=0.25)
    kinds = {"classification": (np.float32, np.int32), "language": (np.int32, np.int32)}
    x_type, y_type = kinds.get(data.meta["task"], (np.float32, np.float32))
    assert "\n" not in data.meta["description"] and data.validation is None, name
    for part in (data.train, data.test):
      batch = everything(part)
      assert batch["x"].shape == (part.size, *data.meta["shape"]) and batch["x"].dtype == x_type, name
      assert len(batch["y"]) == part.size and batch["y"].dtype == y_type, name
      indices = np.array([3, 0, 3])
      for key, value in part.take(indices).items():
        np.testing.assert_array_equal(value, batch[key][indices])
      if data.meta["task"] == "classification":
        assert batch["y"].shape == (part.size,) and batch["y"].max() < data.meta["num_outputs"], name
        np.testing.assert_array_equal(part.labels, batch["y"])
      else:
        assert part.labels is None, name
    held = round(0.25 * data.train.size)
    assert (again.train.size, again.validation.size) == (data.train.size - held, held), name
    parts = [*everything(again.train)["x"], *everything(again.validation)["x"]]
    # Each example is in exactly one of the parts.
    assert sorted(x.tobytes() for x in parts) == sorted(x.tobytes() for x in everything(data.train)["x"]), name
  factory, settings = factories["npz"]
  one, two = (everything(factory(**settings, validation=0.25).validation)["x"] for _ in range(2))
  np.testing.assert_array_equal(one, two)


def test_empty_validation_split():
  one_line(ValueError, lambda: DATA["digits"](validation=1e-6), "validation", "1437")


def test_digits_are_complete_and_stratified():
  from sklearn.datasets import load_digits
  from sklearn.model_selection import train_test_split

  data = DATA["digits"]()
  assert (data.train.size, data.test.size) == (1437, 360)
  images, labels = load_digits(return_X_y=True)
  split = train_test_split(np.arange(1797), test_size=360, stratify=labels, random_state=0)
  for part, indices in zip((data.train, data.test), split, strict=True):
    np.testing.assert_array_equal(everything(part)["x"].reshape(-1, 64) * 16, images[indices])
    np.testing.assert_array_equal(part.labels, labels[indices])
  counts = np.bincount(np.concatenate([data.train.labels, data.test.labels]))
  np.testing.assert_allclose(np.bincount(data.test.labels), counts * 360 / 1797, atol=1)


# text


@pytest.mark.parametrize("level", ["byte", "char"])
def test_text_windows(tmp_path, level):
  content = "".join(chr(97 + i * i % 23) for i in range(1000)) + "é" * 20
  (tmp_path / "a.txt").write_text(content, encoding="utf-8")
  data = DATA["text"](path=str(tmp_path / "a.txt"), level=level, length=7)
  if level == "byte":
    tokens, outputs = list(content.encode()), 256
  else:
    vocabulary = sorted(set(content))
    assert data.meta["vocabulary"] == "".join(vocabulary)
    tokens, outputs = [vocabulary.index(character) for character in content], len(vocabulary)
  assert data.meta["num_outputs"] == outputs
  cut = len(tokens) - len(tokens) // 10
  for part, piece in ((data.train, tokens[:cut]), (data.test, tokens[cut:])):
    batch = everything(part)
    assert part.size == (len(piece) - 1) // 7
    for i in range(part.size):
      assert batch["x"][i].tolist() == piece[7 * i : 7 * i + 7]
      assert batch["y"][i].tolist() == piece[7 * i + 1 : 7 * i + 8]


def test_text_default_is_the_language_reference():
  data = DATA["text"]()
  text = bytes(everything(data.train)["x"].astype(np.uint8)).decode("utf-8", "ignore")
  assert data.train.size > 6000 and text.startswith('The "assert" statement')
  assert "sha256" in data.meta["description"]


@pytest.mark.parametrize(
  "content, settings, words",
  [
    (b"", {}, ["empty"]),
    (b"a" * 649, {}, ["got 64.", "length=63"]),
    (b"abc", {}, ["longer text"]),
    (b"ab\xff" * 500, {"level": "char"}, ["UTF-8", "byte 2"]),
    (b"a" * 1000, {"level": "word"}, ["'word'", "byte", "char"]),
  ],
)
def test_invalid_texts(tmp_path, content, settings, words):
  (tmp_path / "a.txt").write_bytes(content)
  one_line(ValueError, lambda: DATA["text"](path=str(tmp_path / "a.txt"), **settings), *words)
  one_line(ValueError, lambda: DATA["text"](path=str(tmp_path)), str(tmp_path))


# least squares


@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_least_squares_optimum(validation):
  data = DATA["least_squares"](examples=256, features=8, validation=validation)
  batch = everything(data.train)
  x, y, w = batch["x"].astype(float), batch["y"].astype(float), data.meta["optimum"]
  assert w.shape == (8, 1)
  residual = x @ w - y
  np.testing.assert_allclose(x.T @ residual / len(x), 0, atol=1e-12)  # the gradient vanishes
  np.testing.assert_allclose(data.meta["optimal_loss"], 0.5 * np.mean(residual**2), rtol=1e-12)


def test_least_squares_noise_and_condition():
  data = DATA["least_squares"](examples=40_000, features=6, noise=0.5, condition=25.0)
  x = everything(data.train)["x"].astype(float)
  spectrum = np.linalg.eigvalsh(x.T @ x / len(x))
  np.testing.assert_allclose(spectrum[-1] / spectrum[0], 25, rtol=0.05)  # a sample's spectrum
  np.testing.assert_allclose(data.meta["optimal_loss"], 0.5 * 0.5**2, rtol=0.05)
  one_line(ValueError, lambda: DATA["least_squares"](condition=0.5), "condition", "0.5")


@pytest.mark.parametrize("task, shape", [("classification", (5, 4)), ("language", (7,)), ("regression", (3,))])
def test_synthetic_examples(task, shape, monkeypatch):
  monkeypatch.setattr("ddl.data.synthetic.DIFFERENT", 2**10)
  data = DATA["synthetic"](task=task, shape=shape, num_outputs=6, examples=400)
  batch = everything(data.train)
  assert batch["x"].shape == (400, *shape) and data.test.size == 100
  assert batch["y"].shape == {"classification": (400,), "language": (400, 7), "regression": (400, 6)}[task]
  assert len(np.unique(batch["x"].reshape(400, -1), axis=0)) < 100
  if task == "language":
    np.testing.assert_array_equal(batch["x"][:, 1:], batch["y"][:, :-1])
  if task == "classification":
    np.testing.assert_array_equal(data.train.labels, batch["y"])


@pytest.mark.parametrize("change", [{"task": "speech"}, {"shape": ()}, {"task": "language", "shape": (4, 4)}])
def test_invalid_synthetic_examples(change):
  one_line(ValueError, lambda: DATA["synthetic"](**change), f"config.data.{[*change][-1]} must ")
