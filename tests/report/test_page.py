"""A comparison's page: complete, escaped, in the order of the labels; its interactive chart in a browser."""

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.comparisons import ALGORITHMS, Tags, comparison, finding_of, frames_of, meets_at, metrics, rising
from helpers.comparisons import undrawn_page as page_of

from ddl.report import curves, reader, sentences, tables
from ddl.report import page as report

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def test_page_is_complete_and_self_contained(realistic_page):
  path = realistic_page
  names = ["accuracy_vs_examples", "accuracy_vs_bytes", "accuracy_vs_seconds", "loss_vs_examples"]
  names.append("distance_vs_examples")
  kinds = ("csv", "pdf", "png", "svg")
  assert {file.name for file in (path.parent / "figures").iterdir()} == {f"{n}.{kind}" for n in names for kind in kinds}
  text = path.read_text()
  page = Tags(text)
  assert not page.open
  tags = [tag for tag, _ in page.tags]
  assert [attrs["id"] for tag, attrs in page.tags if tag == "figure"] == names
  assert not {"link", "iframe", "object", "embed", "base"} & set(tags) and 'id="grid"' not in text
  for tag, attrs in page.tags:
    assert tag != "img" or (len(attrs["alt"]) > 40 and attrs["src"].startswith("data:image/svg+xml,"))
    assert tag == "img" or "src" not in attrs
    assert not attrs.get("href", "#").partition("#")[0] and not {"poster", "data", "action"} & set(attrs)
  cells = [attrs for tag, attrs in page.tags if tag == "td"]
  assert len(cells) == 7 * (5 + 7 + 2) + 4 * 21 * 5  # 21 pairs of 5 quantities
  assert all(attrs["data-label"] for attrs in cells)  # for narrow screens
  parts = "2/3 reached", "seed 1 diverged at step 180", "nothing is sent", "2006.00441", "0.10.2", "0a1b2c3"
  for part in ("; 8 workers, batch of 16 per worker, 400 steps, 3 seeds.", *parts):
    assert part in text
  alts = [attrs["alt"] for tag, attrs in page.tags if tag == "img"]
  for alt in alts:
    ends, _, hidden = alt.partition("end at: ")[2].partition(". ")
    places = [ends.find(f"{label} ") for label in ALGORITHMS if label not in hidden]
    assert places == sorted(places)


@pytest.mark.parametrize(
  ("devices", "settings", "hardware"),
  [
    ([], None, ""), ([0], None, ""), ([2], None, "8 workers on 2 devices"),
    ([1, 2], None, "8 workers on 1 or 2 devices"),
    ([1], {"easgd": {"workers": 1, "batch": 128}, "local_sgd": {"workers": 16}}, "1 to 16 workers on 1 device"),
  ],
)  # fmt: skip
def test_measured_seconds_name_the_devices(tmp_path, devices, settings, hardware):
  lines = [rising(0.1, 0.5, 0.96)] * 2
  folder = comparison(tmp_path, {"easgd": lines, "local_sgd": lines}, settings=settings)
  for path, count in zip(sorted(folder.glob("*/seed-*")), devices * 4, strict=False):
    about = {"layout": {"devices": count, "processes": 1}} if count else {}
    (path / "about.json").write_text(json.dumps(about))
  text = sentences.clock(reader.read(folder))
  assert text in " ".join(report.table(folder).split())
  assert f"{hardware}, without network" in text if hardware else "device" not in text
  assert "Fastest to 95 %" + f" as measured with {hardware}" * bool(hardware) in finding_of(folder)


def test_workers_and_batch_are_columns_if_labels_differ_in_them(tmp_path, realistic_page):
  lines = [rising(0.1, 0.5, 0.96)] * 2
  runs, settings = {"easgd": lines, "local_sgd": lines, "dasgd": lines}, {"local_sgd": {"workers": 1, "batch": 128}}
  folder = comparison(tmp_path, runs, settings=settings)
  assert "; 1 to 8 workers, batch of 16 to 128 per worker, 400 steps, 2 seeds." in page_of(folder)
  shown = {head: [cell.text for cell in cells] for head, cells in tables.results(frames_of(folder)).items()}
  assert (shown["workers"], shown["batch"]) == (["8", "1", "8"], ["16", "128", "16"])
  head, _, *body = [line.split() for line in report.table(folder).splitlines()[:5]]
  assert [line[1:3] for line in (head, *body)] == [["workers", "batch"], ["8", "16"], ["1", "128"], ["8", "16"]]
  same = realistic_page.parent
  assert not {"workers", "batch"} & set(tables.results(frames_of(same))) and "batch" not in report.table(same)


def test_strings_are_escaped_and_a_regression_is_plotted_by_its_loss(tmp_path):
  lines = [rising(0.1, 0.6, 0.9, 0.999) for _ in range(2)]
  for line in [*lines[0], *lines[1]]:
    del line["test_accuracy"]
  hostile = "<script>alert('&')</script>"
  runs = {"local_sgd": lines, f"{hostile} $x$".replace("/", "|"): lines, "dasgd": []}
  folder = comparison(tmp_path, runs, metric="test_loss", value=0.2, title=hostile, data=hostile, command=hostile)
  text = page_of(folder)
  assert "<script>alert" not in text and "&lt;script&gt;" in text and text.count("</script>") == 3
  assert "keep is 3; the share lies in 0..1" in text and "no result" in text
  names = ["loss_vs_bytes", "loss_vs_examples", "loss_vs_seconds"]  # all distances are zero
  assert sorted(file.stem for file in tmp_path.glob("figures/*.png")) == names
  assert curves.data(reader.read(folder), "test_loss")[1] and "0.001" in report.table(folder)


def test_a_comparison_without_results_has_a_page(tmp_path):
  folder = comparison(tmp_path, {"dasgd": [], "easgd": []})
  assert "No algorithm has a result" in page_of(folder)
  assert report.table(folder).count("no result") == 2 and not (tmp_path / "figures").exists()
  assert "stopped at step 0" in report.table(comparison(tmp_path / "start", {"easgd": [rising(0.1)]}))


def test_invalid_folders_are_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"comparison\.json"):
    report.table(tmp_path)
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.5)]})
  with pytest.raises(ValueError, match="'speed'"):
    report.table(comparison(tmp_path / "speed", {"easgd": [rising(0.1)]}, metric="speed"))
  with (folder / "easgd/seed-0/metrics.jsonl").open("a") as file:
    file.write('{"step": 3')
  with pytest.raises(ValueError, match=r"metrics\.jsonl: line 3"):
    report.table(folder)
  (folder / "comparison.json").write_text("{")
  with pytest.raises(ValueError, match=r"comparison\.json"):
    report.write_report(folder)


def test_files_of_older_versions_are_refused(tmp_path):
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96)] * 2})
  file = folder / "comparison.json"
  info = json.loads(file.read_text())
  entry = info["algorithms"][0]
  for content, word in (
    ({key: value for key, value in info.items() if key != "seeds"}, "seeds"),
    (info | {"algorithms": [{key: value for key, value in entry.items() if key != "runs"}]}, r"algorithms\.runs"),
    (info | {"algorithms": [entry | {"settings": {"workers": 8, "batch": 16}}]}, r"algorithms\.settings\.steps"),
    ([], "object"),
  ):
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=word) as error:
      report.write_report(folder)
    assert "compare --resume" in str(error.value) and "\n" not in str(error.value)


def test_text_table_fits_a_terminal(tmp_path):
  far = rising(0.1, 0.95, 0.97)
  for line in far:
    line.update({name: 1e7 * line[name] for name in ("step", "examples", "bytes_sent", "seconds")})
  label = "sharded_sync_sgd with a very long label, longer than any terminal is wide, " * 2
  text = report.table(comparison(tmp_path, {label: [far] * 3, "easgd": [far, far, rising(0.1)]}))
  assert max(len(line) for line in text.splitlines()) <= 100
  assert "sharded_syn" in text and "12,800 M" in text and "3/3 reached" in text
  assert "\nIn brackets: the mean over" in text and "best mean" not in text  # only marks that it has


@pytest.mark.parametrize(("labels", "shown"), [(1, 0), (4, 6), (5, 6)])
def test_tables_of_pairs_are_limited_and_count_the_rest(tmp_path, monkeypatch, labels, shown):
  monkeypatch.setattr(tables, "SHOWN", 6)
  rng = np.random.default_rng(0)
  folder = comparison(tmp_path, {f"label {n}": meets_at(*rng.integers(2, 12, 3), end=13) for n in range(labels)})
  result = tables.pair_tables(frames_of(folder))
  assert {len(table["labels"]) for table in result} == ({shown} if shown else set())
  assert {table["left_out"] for table in result} == ({labels * (labels - 1) // 2 - shown} if shown else set())
  for table in result:
    values = [0.0 if "below" in cell.text else float(cell.text) for cell in table["columns"]["p after Holm"]]
    assert values == sorted(values)
  if labels == 5:
    text = page_of(folder)
    assert not Tags(text).open and "4 more pairs" in text


def test_importing_the_reader_imports_no_plotting_library_or_jax():
  code = "import sys, ddl.report.reader; print({'jax', 'altair', 'vl_convert', 'jinja2', 'pandas'} & set(sys.modules))"
  root = Path(report.__file__).parents[2]
  done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "set()"


def charted(chart):
  """Return the data of an interactive chart."""
  spec = chart["spec"]
  return pd.read_csv(StringIO(spec["datasets"][spec["data"]["name"]]))


def test_chart_axes_are_columns_with_values(realistic_page, tmp_path, monkeypatch):
  shown = curves.interactive(frames_of(realistic_page.parent))
  assert list(shown["x"]) == ["examples", "bytes_sent", "step", "seconds"]
  assert list(shown["y"]) == ["train_loss", "test_loss", "test_accuracy", "distance"]
  assert shown["x"]["bytes_sent"]["log"] and not shown["x"]["examples"]["log"]
  assert shown["y"]["test_accuracy"]["target"] == 0.95 and shown["y"]["test_loss"]["target"] is None
  (tooltip,) = [layer["encoding"]["tooltip"] for layer in shown["spec"]["layer"] if "tooltip" in layer["encoding"]]
  assert [item["field"] for item in tooltip] == ["label", "x", "y", "low", "high"] and "format" not in tooltip[0]
  assert (shown["y"]["test_accuracy"]["format"], shown["x"]["bytes_sent"]["format"]) == (".2%", ",.4~r")
  points = charted(shown)
  assert set(points["label"]) == set(ALGORITHMS)
  assert points[points["label"] == "dasgd d=4"].dropna(subset="test_accuracy")["step"].max() == 160
  monkeypatch.setattr(curves, "POINTS", len(points) - 1)
  thinned = charted(curves.interactive(frames_of(realistic_page.parent)))
  ends = [chart.groupby("label")["step"].max().to_dict() for chart in (points, thinned)]
  assert len(thinned) < len(points) and ends[0] == ends[1]
  assert curves.interactive(frames_of(comparison(tmp_path, {"dasgd": []}))) is None


def test_pairs_of_costs_are_headed_by_their_scales(tmp_path):
  silent = [line | {"bytes_sent": 0} for line in rising(0.1, 0.96, 0.97)]
  folder = comparison(
    tmp_path, {"independent": [silent] * 3, "easgd": meets_at(3, 4, 5, end=9), "dasgd": meets_at(4, 5, 7, end=9)}
  )
  heads = {
    table["title"].split(" to ")[0]: next(iter(table["columns"])) for table in tables.pair_tables(frames_of(folder))
  }
  assert heads["final test accuracy"] == "difference" and heads["steps"] == "ratio"
  assert set(heads["bytes per worker"].split(" or ")) == {"difference", "ratio"}


@pytest.mark.slow
def test_a_page_with_drawn_figures_is_small(tmp_path):
  path = report.write_report(comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96)] * 3, "dasgd": [rising(0.1)]}))
  text = path.read_text()
  packed = re.search(r'id="chart-bundle">([^<]*)<', text)[1]
  assert len(text) < 2_000_000 and b"vegaEmbed" in gzip.decompress(base64.b64decode(packed)) and not Tags(text).open
  heads = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG", "csv": b"label,"}
  files = list(tmp_path.glob("figures/*"))
  assert len(files) >= 12 and all(file.read_bytes().startswith(heads[file.suffix[1:]]) for file in files)


ACTIONS = """
const seen = [], of = (name) => document.getElementById("chart" + name);
const drawn = () => new Promise((then) => setTimeout(then, 300));
const marks = () => [...of("-plot").querySelectorAll("svg .mark-line path, canvas")].length;
await drawn(); await drawn();
seen.push(!of("").hidden, of("-x").options.length, of("-y").options.length);
for (const x of of("-x").options) for (const y of of("-y").options) {
  of("-x").value = x.value; of("-y").value = y.value; of("-y").dispatchEvent(new Event("change")); await drawn();
  for (const log of ["-x-log", "-y-log"]) { of(log).click(); await drawn(); }
  seen.push(marks() > 0);
}
seen.push(of("-plot").querySelectorAll("input").length, document.documentElement.scrollWidth <= innerWidth);
document.title = JSON.stringify(seen);
"""


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_chart_in_a_browser(tmp_path, width):
  rng = np.random.default_rng(0)
  labels = ("local", "</script><b>&", "easgd with a long name of many letters")
  seeds = [metrics(rng, 10, 0.02, 0.97, 4000, steps=100) for _ in range(3)]
  path = report.write_report(comparison(tmp_path, {label.replace("/", "|"): seeds for label in labels}))
  text = path.read_text()
  assert "<b>&" not in text.replace("&lt;b&gt;&amp;", "")
  path.write_text(text.replace("</body>", f'<script type="module">{ACTIONS}</script></body>'))
  done = subprocess.run(
    [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=90000",
     f"--window-size={width},1200", f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri()],
    capture_output=True, text=True, timeout=120,
  )  # fmt: skip
  assert "Error" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
  title = re.search(r"<title>(.*?)</title>", done.stdout)[1]
  assert json.loads(title) == [True, 4, 4, *[True] * 16, 1, True]
