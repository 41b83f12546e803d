"""Folders of comparisons with synthetic metrics, and the tables, findings and pages of their reports."""

import contextlib
import functools
import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ddl.config.comparison import Comparison
from ddl.config.experiment import flat, jsonable
from ddl.config.tuned import settings_of
from ddl.report import figure, frames, page, reader, sentences

EVERY, STEPS, WORKERS, BATCH, NBYTES = 20, 400, 8, 16, 40_000
# label: (name, period, rate of convergence, final accuracy, bytes per step)
ALGORITHMS = {
  "sync_sgd": ("sync_sgd", 1, 0.020, 0.972, NBYTES),
  "local_sgd": ("local_sgd", 10, 0.022, 0.970, NBYTES / 10),
  "dasgd d=1": ("dasgd", 10, 0.021, 0.968, NBYTES / 10),
  "dasgd d=4": ("dasgd", 10, 0.018, 0.964, NBYTES / 10),
  "easgd": ("easgd", 10, 0.012, 0.955, NBYTES / 10),
  "post_local_sgd": ("post_local_sgd", 10, 0.030, 0.975, NBYTES / 5),
  "independent": ("independent", 1, 0.015, 0.905, 0),
}
TEMPLATE = functools.cache(page.template)
CELL = {"parallelism": "data", "optimization": "decentralized", "scheduling": "synchronous", "pattern": "all-reduce",
        "payload": "parameters"}  # fmt: skip


def metrics(rng, period, rate, final, nbytes, steps=STEPS, every=EVERY):
  """Return the metrics of a run: an accuracy that approaches `final` exponentially, with noise."""
  rate, final = rate * math.exp(0.06 * rng.standard_normal()), final + 0.002 * rng.standard_normal()
  lines = []
  for step in range(0, steps + 1, every):
    accuracy = final - (final - 0.1) * math.exp(-rate * step) + 0.002 * rng.standard_normal()
    loss = 2.3 * math.exp(-rate * step) + 3 * (1 - final) + 0.003 * rng.random()
    line = {
      "step": step,
      "examples": step * WORKERS * BATCH,
      "epoch": step * WORKERS * BATCH / 1437,
      "test_loss": loss,
    }
    line |= {"test_accuracy": accuracy, "bytes_sent": step * nbytes, "seconds": step * (0.004 + nbytes * 2e-7)}
    line["seconds"] *= 1 + 0.02 * rng.random()
    line["distance"] = 0.0 if nbytes == NBYTES else 0.02 * period * math.exp(-rate * step / 3) * (step > 0)
    lines.append(line | ({"train_loss": loss * 0.9} if step else {}))
  return lines


def write_tuned(file: Path, config, best: dict) -> Path:
  """Write the tuned.json of a sweep of `config`. best: label -> section -> key -> value."""
  tuned, entries = Comparison.from_config(config), {}
  for label, setting in best.items():
    group, point = tuned.place(label)
    settings = settings_of(tuned.experiments[label], [*flat(setting)])
    entries[label] = {"group": group, "point": jsonable(point), "settings": settings, "best": setting, "trials": []}
  file.write_text(json.dumps({"algorithms": entries}))
  return file


def comparison(
  folder: Path, runs: dict, metric="test_accuracy", value=0.95, settings=None, places=None, **info
) -> Path:
  """Write a comparison's folder. runs: label -> list of seeds, each a list of lines (None: no metrics).

  settings: label -> changed settings, such as {"easgd": {"workers": 4}}.
  places: label -> place in the grid, such as {"easgd": {"group": "easgd", "point": {"workers": 4}}}.
  """
  seeds = max((len(of_label) for of_label in runs.values()), default=1)
  entries = []
  for label, of_label in runs.items():
    name, period = ALGORITHMS.get(label, (label, 1))[:2]
    paths = [f"{label.replace(' ', '-')}/seed-{seed}" for seed in range(len(of_label))]
    for path, lines in zip(paths, of_label, strict=True):
      (folder / path).mkdir(parents=True)
      if lines is not None:
        (folder / path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entries.append(
      {"label": label, "name": name, "title": name.replace("_", " "), "citation": "Doe et al. 2020, arXiv 2006.00441",
       "taxonomy": CELL, "sends": "nothing", "hyper": {"period": period},
       "settings": {"optimizer": {"learning_rate": 0.1 * period, "momentum": 0.9}, "steps": STEPS,
                    "workers": WORKERS, "batch": BATCH} | (settings or {}).get(label, {}),
       "virtual": None, "tuned": None, "events": None, "lockstep": None,
       "failed": None if of_label else "keep is 3; the share lies in 0..1", "runs": paths,
       "group": label, "point": {}} | (places or {}).get(label, {})
    )  # fmt: skip
  target = {"metric": metric, "value": value, "higher_is_better": metric == "test_accuracy", "stop": False}
  content = {
    "title": "Eight workers on handwritten digits", "command": "python run.py compare --config=configs/digits.py",
    "config": {"data": {"name": "digits"}}, "target": target,
    "versions": {"python": "3.11.7", "jax": "0.10.2"}, "device": "2 CPU cores", "git": "0a1b2c3",
    "seeds": list(range(seeds)),
    "data": "scikit-learn's handwritten digits, 8x8, 1437 to train and 360 to test", "model": "mlp 64-128-10",
    "expected": [], "grid": {}, "algorithms": entries,
  }  # fmt: skip
  (folder / "comparison.json").write_text(json.dumps(content | info))
  return folder


def realistic(folder: Path) -> Path:
  """Write seven algorithms with three seeds: one seed diverges, one algorithm never reaches the target."""
  rng = np.random.default_rng(0)
  runs = {label: [metrics(rng, *how[1:]) for _ in range(3)] for label, how in ALGORITHMS.items()}
  broken = runs["dasgd d=4"][1]
  broken[9:] = [broken[9] | {"train_loss": math.nan, "test_loss": math.nan, "test_accuracy": 0.1}]
  broken[9]["test_accuracy"] = math.nan
  return comparison(folder, runs)


def rising(*accuracies, **columns):
  """Return lines with these accuracies, evaluated every ten steps. columns: values that override all lines."""
  results = []
  for number, accuracy in enumerate(accuracies):
    step = 10 * number
    line = {"step": step, "examples": 128 * step, "epoch": 0.1 * step, "test_loss": 1 - accuracy, "distance": 0.0}
    line |= {"test_accuracy": accuracy, "bytes_sent": 100 * step, "seconds": 0.5 * step}
    results.append(line | ({"train_loss": 0.1} if step else {}) | columns)
  return results


def meets_at(*evaluations, end=20, **columns):
  """Return a seed for each evaluation, at which its accuracy rises from 0.1 to the target of 95 %; 0: never."""
  return [rising(*[0.1] * (at or end), *[0.95] * (end - (at or end)), **columns) for at in evaluations]


@contextlib.contextmanager
def edited(folder: Path):
  """Change the content of comparison.json in the body of a with statement."""
  file = folder / "comparison.json"
  info = json.loads(file.read_text())
  yield info
  file.write_text(json.dumps(info))


@contextlib.contextmanager
def undrawn():
  """Write pages with empty figures and no scripts, which take most of a report's time."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(figure.Figure, "embedded", lambda self, narrow=False: "data:image/svg+xml,")
    patch.setattr(figure.Figure, "content", lambda self, kind, *svg: b"")
    patch.setattr(figure, "bundle", lambda: "")
    patch.setattr(page, "template", TEMPLATE)
    yield


def undrawn_page(folder: Path) -> str:
  """Return the text of a comparison's page without figures."""
  with undrawn():
    return page.write_report(folder).read_text()


def frames_of(folder: Path) -> frames.Frames:
  """Build a comparison's frames; calls share them while its files are unchanged."""
  files = ((file, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(folder.rglob("*.json*")))
  return _frames(folder, tuple(files))


@functools.lru_cache(maxsize=8)
def _frames(folder: Path, files: tuple) -> frames.Frames:
  return frames.build(reader.read(folder))


def table_of(folder: Path):
  """Return the table of results, indexed by label."""
  return frames_of(folder).table.set_index("label")


def finding_of(folder: Path) -> dict[str, str]:
  """Return subject -> sentence for the findings and caveats."""
  result = frames_of(folder)
  return dict(sentences.findings(result) + sentences.caveats(result))


def quantity(folder: Path, metric: str) -> frames.Quantity:
  (result,) = [item for item in frames.quantities(frames_of(folder).comparison) if item.metric == metric]
  return result


def ranked(folder: Path, metric: str) -> tuple[list[str], list[str]]:
  """Return a quantity's labels by their mean, and the rivals of the best."""
  result = frames.ranking(frames_of(folder), quantity(folder, metric))
  return result.ranked, result.rivals


class Tags(HTMLParser):
  """The start tags of an HTML text with their attributes; checks that tags are balanced."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.open = [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in ("meta", "img", "source", "input"):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag
