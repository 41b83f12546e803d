"""The report of a comparison: its statistics, its honesty about seeds, its page."""

import base64
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.report import comparison as report_data
from experiments.report import findings, report, table_rows
from experiments.report.figures import curves, line_data
from experiments.report.statistics import band, finite_prefix, first_reaching, summary

EVERY, STEPS, WORKERS, BATCH, NBYTES = 20, 400, 8, 16, 40_000

# label: (name, period, rate of learning, final accuracy, bytes per step)
ALGORITHMS = {
  "sync_sgd": ("sync_sgd", 1, 0.020, 0.972, NBYTES),
  "local_sgd": ("local_sgd", 10, 0.022, 0.970, NBYTES / 10),
  "dasgd d=1": ("dasgd", 10, 0.021, 0.968, NBYTES / 10),
  "dasgd d=4": ("dasgd", 10, 0.018, 0.964, NBYTES / 10),
  "easgd": ("easgd", 10, 0.012, 0.955, NBYTES / 10),
  "post_local_sgd": ("post_local_sgd", 10, 0.030, 0.975, NBYTES / 5),
  "independent": ("independent", 1, 0.015, 0.905, 0),
}
CELL = {"parallelism": "data", "optimization": "decentralized", "scheduling": "synchronous", "pattern": "all-reduce",
        "payload": "parameters"}  # fmt: skip


def metrics(rng, period, rate, final, nbytes, steps=STEPS, every=EVERY):
  """Lines as a run writes them: an exponential approach to `final` with noise."""
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


def comparison(folder: Path, runs: dict, metric="test_accuracy", value=0.95, **info) -> Path:
  """Writes a comparison's folder: runs[label] is a list of seeds, each a list of lines (None: no metrics)."""
  seeds = max((len(each) for each in runs.values()), default=1)
  entries = []
  for label, each in runs.items():
    name, period = ALGORITHMS.get(label, (label, 1))[:2]
    paths = [f"{label.replace(' ', '-')}/seed-{seed}" for seed in range(len(each))]
    for path, lines in zip(paths, each, strict=True):
      (folder / path).mkdir(parents=True)
      if lines is not None:
        (folder / path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entries.append(
      {"label": label, "name": name, "title": name.replace("_", " "), "citation": "Doe et al. 2020, arXiv 2006.00441",
       "taxonomy": CELL, "hyper": {"period": period},
       "settings": {"optimizer": {"learning_rate": 0.1 * period, "momentum": 0.9}, "steps": STEPS},
       "failed": None if each else "keep is 3; the share lies in 0..1", "runs": paths}
    )  # fmt: skip
  given = {
    "title": "Eight workers on handwritten digits", "command": "python run.py compare --config=configs/digits.py",
    "config": {"data": {"name": "digits"}}, "target": {"metric": metric, "value": value},
    "versions": {"python": "3.11.7", "jax": "0.10.2"}, "device": "2 CPU cores", "git": "0a1b2c3",
    "seeds": list(range(seeds)),
    "data": "scikit-learn's handwritten digits, 8x8, 1437 to train and 360 to test", "model": "mlp 64-128-10",
    "workers": WORKERS, "batch": BATCH, "algorithms": entries,
  }  # fmt: skip
  (folder / "comparison.json").write_text(json.dumps(given | info))
  return folder


def realistic(folder: Path) -> Path:
  """Seven algorithms, three seeds: one seed diverges, one algorithm never gets there, one sends nothing."""
  rng = np.random.default_rng(0)
  runs = {label: [metrics(rng, *how[1:]) for _ in range(3)] for label, how in ALGORITHMS.items()}
  broken = runs["dasgd d=4"][1]
  broken[9:] = [broken[9] | {"train_loss": math.nan, "test_loss": math.nan, "test_accuracy": 0.1}]
  broken[9]["test_accuracy"] = math.nan
  return comparison(folder, runs)


def rising(*accuracies, **columns):
  """Lines with the given accuracies, evaluated every ten steps; columns override figures of every line."""
  found = []
  for number, accuracy in enumerate(accuracies):
    step = 10 * number
    line = {"step": step, "examples": 128 * step, "epoch": 0.1 * step, "test_loss": 1 - accuracy, "distance": 0.0}
    line |= {"test_accuracy": accuracy, "bytes_sent": 100 * step, "seconds": 0.5 * step}
    found.append(line | ({"train_loss": 0.1} if step else {}) | columns)
  return found


def rows_of(folder: Path):
  comparison = report_data.read(folder)
  return {row.label: row for row in table_rows.rows(comparison)}


def finding_of(folder: Path) -> str:
  comparison = report_data.read(folder)
  sentences = findings.finding(comparison, table_rows.rows(comparison))
  return " ".join(f"{subject}: {text}" if subject else text for subject, text in sentences)


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_summary_is_the_student_interval(size):
  values = np.random.default_rng(size).normal(3.0, 2.0, size)
  mean, half = summary(values)
  low, high = stats.t.interval(0.95, size - 1, loc=values.mean(), scale=stats.sem(values))
  np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=1e-12)


def test_summary_of_few_and_of_nan():
  assert summary([0.7]) == (0.7, None)
  assert math.isnan(summary([])[0]) and summary([])[1] is None
  assert math.isnan(summary([0.5, math.nan])[0])


def test_first_reaching_is_the_first_line_that_meets_the_target():
  values = np.array([0.1, math.nan, 0.9, 0.95, 0.8, 0.99])
  assert first_reaching(values, 0.9, higher_is_better=True) == 2
  assert first_reaching(values, 0.96, higher_is_better=True) == 5
  assert first_reaching(values, 1.0, higher_is_better=True) is None
  assert first_reaching(np.array([math.nan, 2.0, 0.5]), 0.5, higher_is_better=False) == 2
  assert first_reaching(np.array([math.nan]), 0.5, higher_is_better=False) is None


def test_band_covers_what_all_seeds_cover():
  long = (np.array([0.0, 10.0, 20.0, 40.0]), np.array([0.0, 1.0, 2.0, 4.0]))
  late = (np.array([5.0, 20.0, 30.0]), np.array([1.0, 2.5, 9.0]))
  x, mean, half = band([long, late])
  np.testing.assert_array_equal(x, [5, 10, 20, 30])  # neither 0 nor 40: one seed alone
  expected = [summary([0.5, 1.0]), summary([1.0, 1.5]), summary([2.0, 2.5]), summary([3.0, 9.0])]
  np.testing.assert_allclose(mean, [m for m, _ in expected], rtol=1e-12)
  np.testing.assert_allclose(half, [h for _, h in expected], rtol=1e-12)
  assert band([long])[2] is None
  assert len(band([long, (np.array([50.0]), np.array([1.0]))])[0]) == 0


def test_finite_prefix_ends_before_the_first_nan():
  x, y = finite_prefix(np.arange(4.0), np.array([1.0, 2.0, math.inf, 3.0]))
  np.testing.assert_array_equal((x, y), ([0, 1], [1, 2]))


def test_costs_are_those_of_the_first_line_that_meets_the_target(tmp_path):
  seeds = [rising(0.1, 0.5, 0.95, 0.2, 0.96), rising(0.1, 0.95, 0.5, 0.5, 0.97)]
  row = rows_of(comparison(tmp_path, {"local_sgd": seeds}))["local_sgd"]
  assert (row.seeds, row.finished, row.reached) == (2, 2, 2)
  half = 12.7062047361747 * np.std([20, 10], ddof=1) / np.sqrt(2)  # t(0.975, 1)
  np.testing.assert_allclose(row.costs["step"][:2], [15, half])
  assert row.costs["step"].seeds == {"seed 0": (10, 20), "seed 1": (0, 10)}  # met within (10, 20] and (0, 10]
  assert row.costs["examples"].mean == 128 * 15
  assert row.costs["bytes_sent"].mean == 100 * 15
  assert row.costs["seconds"].mean == 0.5 * 15
  np.testing.assert_allclose(row.final[:2], summary([0.96, 0.97]))


def test_a_seed_that_diverges_stops_or_is_missing_is_told_and_not_averaged(tmp_path):
  good = rising(0.1, 0.5, 0.96, 0.97)
  broken = rising(0.1, 0.5, math.nan)
  folder = comparison(tmp_path, {"easgd": [good, broken, None, good[:2]]})
  row = rows_of(folder)["easgd"]
  assert (row.seeds, row.finished, row.reached) == (4, 1, 1)
  assert row.final.mean == 0.97 and table_rows.final(row) is None and table_rows.cost("step")(row) is None
  assert row.notes == ["seed 2: no metrics", "seed 1 diverged at step 20", "seed 3 stopped at step 10"]
  assert "(97.00 %)" in report.table(folder) and "1/4 reached" in report.table(folder)
  assert "*" not in report.table(folder).splitlines()[2]


def test_all_seeds_of_one_algorithm_stop_early(tmp_path):
  whole, short = rising(0.1, 0.5, 0.96, 0.97), rising(0.1, 0.99)
  rows = rows_of(comparison(tmp_path, {"easgd": [short] * 2, "local_sgd": [whole] * 2}))
  assert (rows["easgd"].finished, rows["local_sgd"].finished) == (0, 2)


def test_runs_without_the_metric_of_the_target_say_so(tmp_path):
  lines = [{name: line[name] for name in line if name != "test_accuracy"} for line in rising(0.1, 0.5)]
  assert rows_of(comparison(tmp_path, {"easgd": [lines]}))["easgd"].notes == ["seed 0 has no test accuracy"]


def test_one_evaluation_less_is_a_stop_beside_seeds_of_the_same_algorithm_only(tmp_path):
  whole = rising(0.1, 0.5, 0.96, 0.97, 0.97)
  # Rounds of 30 steps end at 30: less than a spacing from 40, and all that this algorithm can do.
  rounds = [line for line in rising(0.1, 0.5, 0.96, 0.97) if line["step"] in (0, 30)]
  rows = rows_of(comparison(tmp_path, {"easgd": [rounds] * 2, "local_sgd": [whole, whole[:4]]}))
  assert rows["easgd"].notes == [] and rows["local_sgd"].notes == ["seed 1 stopped at step 30"]


def test_a_training_loss_that_is_not_a_number_is_a_divergence(tmp_path):
  row = rows_of(comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96, train_loss=math.nan)]}))["easgd"]
  assert row.notes == ["seed 0 diverged at step 10"]


def test_a_winner_is_named_only_outside_the_noise(tmp_path):
  fast, slow = rising(0.1, 0.95, 0.96, 0.96, 0.96), rising(0.1, 0.2, 0.3, 0.4, 0.95)
  clear = finding_of(comparison(tmp_path / "clear", {"easgd": [slow] * 3, "local_sgd": [fast] * 3}))
  fewest = "local_sgd (1,280 ± 0); the next on average, easgd, takes 3,840 ± 0 more (paired by seed)."
  assert f"Fewest examples to 95 %: {fewest}" in clear
  ends = "local_sgd (96.00 ± 0.00 %); the next on average, easgd, is 1.00 ± 0.00 points lower (paired by seed)."
  assert f"Highest test accuracy at the end: {ends}" in clear
  mixed = [fast, slow, slow]
  noisy = finding_of(comparison(tmp_path / "noisy", {"easgd": [slow] * 3, "local_sgd": mixed}))
  steps = [line.split() for line in report.table(tmp_path / "noisy").splitlines()[2:4]]
  assert (steps[0][5], steps[1][5]) == ("40~", "30*")
  assert "Fewest examples to 95 %: not told apart are local_sgd (3,840 ± 5,507) and easgd (5,120 ± 0)." in noisy
  tie = finding_of(comparison(tmp_path / "tie", {"easgd": [fast] * 3, "local_sgd": [fast] * 3}))
  assert "Soonest to 95 %: not told apart" in tie and "at the end: not told apart" in tie
  next_one = rising(0.1, 0.2, 0.95, 0.96, 0.96)  # met within (10, 20] where the fast one has met within (0, 10]
  near = finding_of(comparison(tmp_path / "near", {"easgd": [next_one] * 3, "local_sgd": [fast] * 3}))
  assert "Fewest examples to 95 %: local_sgd (1,280 ± 0); the next on average, easgd, takes 1,280 ± 0 more" in near


def test_a_difference_below_the_spacing_of_evaluations_names_no_winner(tmp_path):
  first, second = rising(0.1, 0.2, 0.95), rising(0.1, 0.2, 0.95)
  for line in second:  # evaluated at 0, 12, 24: met within (12, 24], the other within (10, 20]
    line["examples"] *= 1.2
  assert "Fewest examples to 95 %: not told apart" in finding_of(
    comparison(tmp_path, {"easgd": [second] * 2, "local_sgd": [first] * 2})
  )


def test_some_seeds_or_nobody_or_one_seed(tmp_path):
  good, bad = rising(0.1, 0.5, 0.96), rising(0.1, 0.5, 0.6)
  some = finding_of(comparison(tmp_path / "some", {"easgd": [good, bad], "local_sgd": [bad, bad]}))
  assert "No algorithm reached a test accuracy of 95 % with every seed, so none is ranked." in some
  assert "Only some seeds got there with easgd (1 of 2)" in some and "local_sgd never did." in some
  nobody = finding_of(comparison(tmp_path / "nobody", {"easgd": [bad] * 2}))
  assert nobody == "No algorithm reached a test accuracy of 95 % with every seed."
  one = comparison(tmp_path / "one", {"easgd": [good], "local_sgd": [rising(0.1, 0.96, 0.97)], "dasgd": []})
  assert finding_of(one).startswith("One seed only: no interval and no spread")
  assert "There is no result for dasgd." in finding_of(one)
  assert "One seed: no interval and no spread" in re.sub(r"\s+", " ", report.table(one))
  assert rows_of(one)["easgd"].final.half is None


def test_who_sends_nothing_is_named_beside_the_bytes_and_not_drawn(tmp_path):
  silent = rising(0.1, 0.5, 0.96, bytes_sent=0)
  runs = {
    "independent": [silent] * 2,
    "easgd": [rising(0.1, 0.5, 0.96)] * 2,
    "local_sgd": [rising(0.1, 0.6, 0.7)] * 2,
  }
  folder = comparison(tmp_path, runs)
  chart = line_data.chart(report_data.read(folder), "bytes_sent", "test_accuracy")
  assert [line.label for line in chart.lines] == ["easgd", "local_sgd"]
  assert chart.absent == "Sends nothing, so not on this axis: independent (ends at 96.00 %)."
  assert all((line.x > 0).all() for line in chart.lines)
  assert "Fewest bytes per worker to 95 %, of those that send any: easgd (2.00 ± 0.00 kB)." in finding_of(folder)


def test_a_line_ends_with_its_first_seed_and_the_others_go_on_singly(tmp_path):
  whole = rising(0.1, 0.5, 0.9, 0.96)
  folder = comparison(tmp_path, {"easgd": [whole, rising(0.1, 0.4, math.nan), whole]})
  (line,) = line_data.chart(report_data.read(folder), "examples", "test_accuracy").lines
  np.testing.assert_array_equal(line.x, [0, 1280])
  np.testing.assert_allclose(line.mean, [0.1, 1.4 / 3])
  assert line.stopped == [(1280.0, 0.4)]
  np.testing.assert_array_equal(line.rest[0], ([1280, 2560, 3840], [0.5, 0.9, 0.96]))


def test_the_table_fits_a_terminal(tmp_path):
  far = rising(0.1, 0.96, 0.97)
  for line in far:
    line.update({name: 1e7 * line[name] for name in ("step", "examples", "bytes_sent", "seconds")})
  label = "sharded_sync_sgd with a very long label, longer than any terminal is wide, " * 2
  text = report.table(comparison(tmp_path, {label: [far] * 3, "easgd": [far, far, rising(0.1)]}))
  assert max(len(line) for line in text.splitlines()) <= 100
  assert "sharded_syn" in text and "12,800 M" in text and "3/3 reached" in text


class Tags(HTMLParser):
  """Every start tag with its attributes, and whether tags are balanced."""

  def __init__(self, text):
    super().__init__()
    self.found, self.open = [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.found.append((tag, dict(attrs)))
    if tag not in ("meta", "img", "source"):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


def test_the_page_stands_alone_and_escapes_what_it_shows(tmp_path):
  path = report.write_report(realistic(tmp_path))
  names = [
    "accuracy_vs_bytes",
    "accuracy_vs_examples",
    "accuracy_vs_seconds",
    "distance_vs_examples",
    "loss_vs_examples",
  ]
  assert path == tmp_path / "report.html"
  assert sorted(each.stem for each in tmp_path.glob("*.png")) == names
  for name in names:
    head = (tmp_path / f"{name}.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(head[16:20], "big") == 1920
  page = Tags(path.read_text())
  assert not page.open
  kinds = [tag for tag, _ in page.found]
  assert kinds.count("img") == 5 and not {"script", "link", "iframe"} & set(kinds)
  for tag, attrs in page.found:
    assert tag != "img" or len(attrs["alt"]) > 40
    for name in ("src", "srcset", "href"):
      if name in attrs:
        kind, data = attrs[name].split(",")
        assert kind == "data:image/svg+xml;base64"
        assert not re.search(r'href="(?!#)|url\((?!#)|@import', base64.b64decode(data).decode())
  cells = [attrs for tag, attrs in page.found if tag == "td"]
  assert len(cells) == 7 * (5 + 6 + 2) and all(attrs["data-label"] for attrs in cells)  # for pages of a phone's width
  text = path.read_text()
  for told in (
    "2/3 reached",
    "seed 1 diverged at step 180",
    "Sends nothing",
    "arXiv 2006.00441",
    "0.10.2",
    "0a1b2c3",
  ):
    assert told in text


def test_every_picture_has_the_algorithms_in_the_order_of_the_comparison(tmp_path):
  found = report_data.read(realistic(tmp_path))
  drawn = curves.pictures(found)
  assert len(drawn) == 5
  for picture in drawn:
    places = {label: picture.alt.find(f"{label} ", picture.alt.index("end at: ")) for label in ALGORITHMS}
    places = [place for label, place in places.items() if label not in picture.caption[0]]
    assert -1 not in places and places == sorted(places)


def test_the_accuracy_axis_goes_down_to_where_the_ends_can_be_told_apart(tmp_path):
  slow, fast = rising(0.1, 0.3, 0.4, 0.94), rising(0.1, 0.9, 0.97, 0.975)
  charts = report_data.read(comparison(tmp_path, {"easgd": [slow] * 3, "local_sgd": [fast] * 3}))
  low, high = line_data.chart(charts, "examples", "test_accuracy").limits
  assert low == pytest.approx(0.85) and 0.975 < high < 0.99


def test_measured_seconds_are_said_to_be_of_what_ran_it(tmp_path):
  lines = [rising(0.1, 0.5, 0.96)] * 2

  def told(name, *layouts, **info):
    folder = comparison(tmp_path / name, {"easgd": lines, "local_sgd": lines}, **info)
    for path, (devices, processes) in zip(sorted(folder.glob("*/seed-*")), layouts * 4, strict=False):
      about = {"layout": {"devices": devices, "processes": processes}}
      (path / "about.json").write_text(json.dumps(about if devices else {}))
    caption = next(p.caption for p in curves.pictures(report_data.read(folder)) if p.name.endswith("seconds"))
    text = re.sub(r"\s+", " ", report.table(folder))
    assert all(sentence in text for sentence in caption[:2])
    return " ".join(caption[:2]), finding_of(folder)

  caption, finding = told("shared", (2, 1))
  where = "evaluation: 8 workers on 2 devices, each device doing the work of 4, and no message crossed a network."
  assert where in caption and "not on a cluster; compare --cluster=... adds" in caption
  assert "Soonest to 95 % as measured with 8 workers on 2 devices: " in finding
  assert "8 workers on 1 or 2 devices, each device doing the work of 4 or 8, and" in told("two", (1, 1), (2, 1))[0]
  assert "without compilation and evaluation: 8 workers on 8 devices. They" in told("own", (8, 8))[0]
  caption, finding = told("unknown", (0, 0))
  assert "without compilation and evaluation. They" in caption and "Soonest to 95 %: " in finding


def test_strings_are_escaped_and_a_regression_is_drawn_by_its_loss(tmp_path):
  lines = [rising(0.1, 0.6, 0.9, 0.999) for _ in range(2)]
  for line in [*lines[0], *lines[1]]:
    del line["test_accuracy"]
  hostile = "<script>alert('&')</script>"
  runs = {"local_sgd": lines, f"{hostile} $x$".replace("/", "|"): lines, "dasgd": []}
  folder = comparison(tmp_path, runs, metric="test_loss", value=0.2, title=hostile, data=hostile, command=hostile)
  text = report.write_report(folder).read_text()
  assert "<script" not in text and "&lt;script&gt;" in text
  assert "keep is 3; the share lies in 0..1" in text and "no result" in text
  names = ["loss_vs_bytes", "loss_vs_examples", "loss_vs_seconds"]  # all distances are zero
  assert sorted(each.stem for each in tmp_path.glob("*.png")) == names
  chart = line_data.chart(report_data.read(folder), "examples", "test_loss")
  assert chart.log_y and chart.target == 0.2
  assert "0.001" in report.table(folder)


def test_a_comparison_without_results_still_reports(tmp_path):
  folder = comparison(tmp_path, {"dasgd": [], "easgd": []})
  assert "No algorithm has a result" in report.write_report(folder).read_text()
  assert report.table(folder).count("no result") == 2
  assert not list(tmp_path.glob("*.png"))


@pytest.mark.filterwarnings("error")
def test_odd_values_are_drawn_without_complaint(tmp_path):
  start = rising(0.1)  # nothing but the line before training
  odd = rising(0.1, 0.5, 0.9, 0.99999)
  for line, distance, loss in zip(odd, [0, 1, 1e-3, 0], [-1.0, -2.0, 50.0, 0.0], strict=True):
    line.update(distance=distance, test_loss=loss, seconds=1000 * line["seconds"])
  pictured = {"easgd": [start, rising(0.1, math.nan)], "local_sgd": [odd, odd], "dasgd": [rising(0.1, 0.5, 1.0)] * 2}
  path = report.write_report(comparison(tmp_path, pictured, metric="test_loss", value=0.0))
  text = path.read_text()
  assert "distance_vs_examples" in text and "local_sgd 0.001" in text  # where it ends is its last figure above zero
  lines = line_data.chart(report_data.read(tmp_path), "examples", "distance")
  assert lines.log_y and [line.label for line in lines.lines] == ["local_sgd"]
  assert not line_data.chart(report_data.read(tmp_path), "examples", "test_loss").log_y  # negative losses
  (tmp_path / "start").mkdir()
  assert "stopped at step 0" in report.write_report(comparison(tmp_path / "start", {"easgd": [start]})).read_text()


def test_the_axis_holds_a_target_that_nobody_comes_near(tmp_path):
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.2, 0.3)]})
  low, high = line_data.chart(report_data.read(folder), "examples", "test_accuracy").limits
  assert low < 0.2 and 0.95 < high <= 1.005


def test_bad_folders_give_one_line(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"`python run\.py compare` writes it"):
    report.table(tmp_path)
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.5)]})
  with pytest.raises(ValueError, match="metric is 'speed'"):
    report.table(comparison(tmp_path / "speed", {"easgd": [rising(0.1)]}, metric="speed"))
  with (folder / "easgd/seed-0/metrics.jsonl").open("a") as file:
    file.write('{"step": 3')
  with pytest.raises(ValueError, match=r"metrics\.jsonl: line 3 is not an object of numbers"):
    report.table(folder)
  (folder / "comparison.json").write_text("{")
  with pytest.raises(ValueError, match="is not JSON"):
    report.write_report(folder)


def test_the_report_needs_no_jax_and_the_table_no_matplotlib():
  code = "import sys, experiments.report.report, experiments.report.figures.style; print({'jax', 'matplotlib', 'jinja2'} & set(sys.modules))"
  root = Path(report.__file__).parents[1]
  done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "set()"
