"""The page's interactive chart: its data against the runs' metrics, its markup, and its script in a browser."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers.comparisons import ALGORITHMS, Tags, comparison, metrics, rising, undrawn_page

from ddl.report import interactive_chart, reader
from ddl.report.statistics import summary

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def folder(realistic_page):
  return realistic_page.parent


@pytest.fixture(scope="module")
def shown(folder):
  return interactive_chart.content(reader.read(folder))


def test_points_are_means_and_intervals_of_the_evaluations(folder, shown):
  runs = reader.read(folder).results[1].runs
  line = shown["lines"][1]
  assert line["label"] == "local_sgd" and line["group"] == "local_sgd"
  assert line["x"]["step"] == [20 * number for number in range(21)]
  mean, half = summary([run.columns["test_accuracy"][7] for run in runs])
  found = [part[7] for part in line["y"]["test_accuracy"]]
  np.testing.assert_allclose(found, (mean, mean - half, mean + half), rtol=1e-4)
  np.testing.assert_allclose(line["x"]["seconds"][7], np.mean([run.columns["seconds"][7] for run in runs]), rtol=1e-4)
  assert line["y"]["train_loss"][0][0] is None and line["y"]["train_loss"][0][1] is not None  # none before training


def test_a_line_ends_where_a_seed_diverges(shown):
  mean = shown["lines"][list(ALGORITHMS).index("dasgd d=4")]["y"]["test_accuracy"][0]
  assert None not in mean[:9] and set(mean[9:]) <= {None}


def test_axes_are_those_that_have_values(shown, tmp_path):
  assert list(shown["x"]) == ["examples", "bytes_sent", "step", "seconds"]
  assert list(shown["y"]) == ["train_loss", "test_loss", "test_accuracy", "distance"]
  assert shown["x"]["bytes_sent"]["log"] and not shown["x"]["examples"]["log"]
  assert shown["y"]["test_accuracy"]["target"] == 0.95 and shown["y"]["test_loss"]["target"] is None
  assert interactive_chart.content(reader.read(comparison(tmp_path, {"dasgd": []}))) is None


def test_a_further_column_of_metrics_becomes_an_axis(tmp_path, monkeypatch):
  monkeypatch.setattr(reader, "COLUMNS", (*reader.COLUMNS, "new_figure"))
  monkeypatch.setattr(interactive_chart, "COLUMNS", reader.COLUMNS)
  found = comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96, new_figure=7.0)] * 3})
  shown = interactive_chart.content(reader.read(found))
  assert shown["y"]["new_figure"]["text"] == "new figure"
  assert shown["lines"][0]["y"]["new_figure"] == [[7.0] * 3] * 3


def test_seconds_on_clusters_are_axes(tmp_path):
  lines = rising(0.1, 0.5, 0.96)
  folder = comparison(tmp_path, {"easgd": [lines] * 2, "local_sgd": [lines] * 2})
  info = json.loads((folder / "comparison.json").read_text())
  ends = [{"ratio": 1, "first": "easgd", "second": "local_sgd"}] * 2
  info["clusters"] = [
    {"name": "far", "bandwidth": 1e9, "link": "between nodes",
     "break_even": {"winner": "easgd", "crossings": [], "searched": [1.0, 2.0], "ends": ends},
     "algorithms": {e["label"]: {"seconds": [[0.0, 1.0, 3.0], [0.0, 2.0, 5.0]]} for e in info["algorithms"]}}
  ]  # fmt: skip
  (folder / "comparison.json").write_text(json.dumps(info))
  shown = interactive_chart.content(reader.read(folder))
  assert "far" in shown["x"]["predicted_seconds_far"]["text"]
  assert shown["lines"][0]["x"]["predicted_seconds_far"] == [0.0, 1.5, 4.0]


@pytest.mark.slow
def test_forty_algorithms_of_ten_seeds_take_less_than_a_megabyte(tmp_path):
  rng = np.random.default_rng(0)
  seeds = [metrics(rng, 10, 0.002, 0.97, 4000, steps=3000, every=5) for _ in range(3)]
  runs = {f"a{number}": [seeds[number % 3], seeds[1], seeds[2]] for number in range(40)}
  shown = interactive_chart.content(reader.read(comparison(tmp_path, runs)))
  assert len(interactive_chart.embedded(shown)) < 1_000_000
  steps = shown["lines"][0]["x"]["step"]
  assert steps[0] == 0 and steps[-1] == 3000 and len(steps) >= interactive_chart.LEAST


@pytest.fixture(scope="module")
def page(tmp_path_factory):
  """Three groups of five, one of them with a name that is markup."""
  rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("groups")
  labels = {f"{group} {n}": group for group in ("local", "</script><b>&", "easgd") for n in range(5)}
  runs = {label: [metrics(rng, 10, 0.02, 0.97, 4000, steps=100) for _ in range(3)] for label in labels}
  info = {"title": "Groups", "expected": []}
  entries = comparison(folder, {label.replace("/", "|"): seeds for label, seeds in runs.items()},
                       places={label.replace("/", "|"): {"group": group} for label, group in labels.items()},
                       **info)  # fmt: skip
  return undrawn_page(entries), labels


def test_the_chart_is_hidden_until_its_script_runs_and_its_controls_have_names(page):
  text, labels = page
  found = Tags(text).found
  (chart,) = [attrs for _, attrs in found if attrs.get("id") == "chart"]
  assert "hidden" in chart
  buttons = [attrs for tag, attrs in found if tag == "button"]
  assert all(attrs["type"] == "button" for attrs in buttons)
  assert [attrs["data-line"] for attrs in buttons if "data-line" in attrs] == [str(n) for n in range(len(labels))]
  assert sum(attrs.get("class") == "whole" for attrs in buttons) == 3
  for each in re.findall(r"<(?:select|input)[^>]*>", text):
    before = text[: text.index(each)]
    assert before.rfind("<label>") > before.rfind("</label>")
  data = json.loads(re.search(r'id="chart-data">(.*?)</script>', text)[1])
  assert [line["group"] for line in data["lines"]] == list(labels.values())


ACTIONS = """
const seen = [], of = (name) => document.getElementById("chart" + name);
const set = (name, value) => { of(name).value = value; of(name).dispatchEvent(new Event("change")); };
const lit = () => document.querySelectorAll('[data-line][aria-pressed="true"]:not([hidden])').length;
seen.push(!of("").hidden && !!of("-plot").querySelector("canvas"), lit());
const drawn = () => new Promise((then) => setTimeout(then, 20));
for (const x of of("-x").options) for (const y of of("-y").options) { set("-x", x.value); set("-y", y.value);
  for (const log of ["-x-log", "-y-log"]) { await drawn(); of(log).click(); }
  await drawn(); seen.push(of("-plot").querySelectorAll("canvas").length); }
document.querySelector(".whole").click(); seen.push(lit());
document.querySelector("[data-line]").click(); seen.push(lit());
of("-find").value = "EASGD"; of("-find").dispatchEvent(new Event("input")); seen.push(lit());
document.querySelector('[data-line="12"]').focus(); seen.push(of("-value").querySelector("strong").textContent);
of("-none").click(); seen.push(lit(), of("-plot").querySelectorAll("canvas").length);
of("-find").value = ""; of("-find").dispatchEvent(new Event("input")); of("-all").click(); seen.push(lit());
of("-best").click(); seen.push(lit());
set("-x", "examples"); set("-y", "test_loss"); of("-bands").click(); await drawn();
const box = of("-plot").querySelector(".u-over"), at = box.getBoundingClientRect();
box.dispatchEvent(new MouseEvent("mouseenter"));
for (let y = 5; y < at.height && !of("-value").querySelector("strong"); y += 5)
{ const where = { clientX: at.left + at.width / 2, clientY: at.top + y };
  box.dispatchEvent(new MouseEvent("mousemove", where)); await drawn(); }
seen.push(!!of("-value").querySelector("strong"));
document.title = JSON.stringify(seen);
"""


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium")
def test_the_script_in_a_browser(page, tmp_path):
  path = tmp_path / "page.html"
  script = f"<script>addEventListener('load', async () => {{ {ACTIONS} }});</script>"
  path.write_text(page[0].replace("</body>", f"{script}</body>"))
  done = subprocess.run(
    [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=90000",
     f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri()],
    capture_output=True, text=True, timeout=120,
  )  # fmt: skip
  assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
  title = re.search(r"<title>(.*?)</title>", done.stdout)[1]
  canvases = [1] * 4 * 4  # x by y axes
  assert json.loads(title) == [True, 15, *canvases, 10, 11, 5, "easgd 2", 0, 0, 15, 3, True]
