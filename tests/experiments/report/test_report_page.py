"""A comparison's page and its pictures: complete, escaped, in the order of the file."""

import base64
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.comparisons import ALGORITHMS, Tags, comparison, finding_of, rising, undrawn_page

from ddl.report import page as report
from ddl.report import reader, wording
from ddl.report.figures import curve_data, curves


@pytest.fixture
def path(realistic_page):
  return realistic_page


def test_the_page_stands_alone_and_escapes_what_it_shows(path):
  names = [f"{name}_vs_examples" for name in ("accuracy", "distance", "loss")]
  names += ["accuracy_vs_bytes", "accuracy_vs_seconds"]
  assert path.name == "report.html"
  kinds = ("csv", "pdf", "png", "svg")
  assert {each.name for each in (path.parent / "figures").iterdir()} == {f"{n}.{kind}" for n in names for kind in kinds}
  for name in names:
    head = (path.parent / f"figures/{name}.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(head[16:20], "big") == 1920
    assert b"/FontFile2" in (path.parent / f"figures/{name}.pdf").read_bytes()  # TrueType, embedded
  page = Tags(path.read_text())
  assert not page.open
  kinds = [tag for tag, _ in page.found]
  assert kinds.count("img") == 5 and not {"link", "iframe", "object", "embed", "base"} & set(kinds)
  for tag, attrs in page.found:
    assert tag != "img" or len(attrs["alt"]) > 40
    assert not {"poster", "data", "action", "xlink:href"} & set(attrs)
    for name in ("src", "srcset", "href"):
      if name in attrs and (tag, name, attrs[name][:1]) != ("a", "href", "#"):
        assert tag in ("img", "source")  # a script is part of the page
        kind, data = attrs[name].split(",")
        assert kind == "data:image/svg+xml;base64"
        assert not re.search(r'href="(?!#)|url\((?!#)|@import', base64.b64decode(data).decode())
  text = path.read_text()
  assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|WebSocket|EventSource|sendBeacon", text)
  cells = [attrs for tag, attrs in page.found if tag == "td"]
  assert len(cells) == 7 * (5 + 6 + 2) + 5 * 21 * 5  # 21 pairs of 5 quantities
  assert all(attrs["data-label"] for attrs in cells)  # for pages of a phone's width
  for part in ("2/3 reached", "seed 1 diverged at step 180", "Sends nothing", "2006.00441", "0.10.2", "0a1b2c3"):
    assert part in text


def test_every_picture_has_the_algorithms_in_the_order_of_the_comparison(path):
  alts = [attrs["alt"] for tag, attrs in Tags(path.read_text()).found if tag == "img"]
  assert len(alts) == 5
  for alt in alts:
    drawn, _, absent = alt.partition("end at: ")[2].partition(". ")
    places = [drawn.find(f"{label} ") for label in ALGORITHMS if label not in absent]
    assert -1 not in places and places == sorted(places)


def test_the_accuracy_axis_has_room_for_the_differences_of_the_ends(tmp_path):
  slow, fast = rising(0.1, 0.3, 0.4, 0.94), rising(0.1, 0.9, 0.97, 0.975)
  charts = reader.read(comparison(tmp_path, {"easgd": [slow] * 3, "local_sgd": [fast] * 3}))
  low, high = curve_data.chart(charts, "examples", "test_accuracy").limits
  assert low == pytest.approx(0.92) and 0.975 < high < 0.985  # half of 97.5 - 94 % below 94 %, in steps of 0.5 %


def test_an_algorithm_that_fails_does_not_squeeze_the_others(tmp_path):
  """It is named with its end instead; one that is merely worse stays on the axis."""
  good, worse, bad = rising(0.1, 0.9, 0.97), rising(0.1, 0.8, 0.86), rising(0.1, 0.2, 0.12)
  runs = {"easgd": [good] * 2, "local_sgd": [worse] * 2, "dasgd": [bad] * 2}
  for labels, below in ((runs, ["dasgd"]), (("easgd", "local_sgd"), []), (("dasgd",), [])):
    found = reader.read(comparison(tmp_path / str(len(labels)), {label: runs[label] for label in labels}))
    chart = curve_data.chart(found, "examples", "test_accuracy")
    assert [label for label in runs if label in chart.absent] == below and ("12.00 %" in chart.absent) == bool(below)
    ends = [line.mean[-1] for line in chart.lines if line.label not in below]
    assert chart.limits[0] < min(ends) and (len(labels) == 1 or chart.limits[0] > 0.7)


def test_a_log_axis_begins_where_the_first_line_comes_into_sight(tmp_path):
  found = reader.read(comparison(tmp_path, {"easgd": [rising(0.1, *[0.2] * 50, 0.9, 0.96)] * 2}))
  shown = curve_data.chart(found, "bytes_sent", "test_accuracy")
  low, high = curves.pictures(found)[1].figure.axes[0].get_xlim()
  inside = shown.lines[0].x[shown.lines[0].mean >= shown.limits[0]]
  assert 0.8 * 50_000 < low < inside[0] and inside[-1] < high < 1.2 * inside[-1]


def test_measured_seconds_name_the_devices_that_ran_it(tmp_path):
  lines = [rising(0.1, 0.5, 0.96)] * 2

  def told(name, *layouts, settings=None):
    folder = comparison(tmp_path / name, {"easgd": lines, "local_sgd": lines}, settings=settings)
    for path, (devices, processes) in zip(sorted(folder.glob("*/seed-*")), layouts * 4, strict=False):
      about = {"layout": {"devices": devices, "processes": processes}}
      (path / "about.json").write_text(json.dumps(about if devices else {}))
    found = reader.read(folder)
    sentences, text = wording.clock(found), re.sub(r"\s+", " ", report.table(folder))
    assert all(sentence in text for sentence in sentences)
    return " ".join(sentences), finding_of(folder)

  soonest = "Soonest to 95 %"
  caption, finding = told("shared", (2, 1))
  assert "8 workers on 2 devices, 4 workers per device, and no message" in caption
  assert f"{soonest} as measured with 8 workers on 2 devices" in finding
  assert "8 workers on 1 or 2 devices, 4 or 8 workers per device, and" in told("two", (1, 1), (2, 1))[0]
  assert "8 workers on 8 devices. " in told("own", (8, 8))[0]
  caption, finding = told("unknown", (0, 0))
  assert "devices" not in caption and soonest in finding
  given = {"easgd": {"workers": 1, "batch": 128}, "local_sgd": {"workers": 16, "batch": 8}}
  caption, finding = told("varying", (1, 1), settings=given)
  assert "1 to 16 workers on 1 device, 1 or 16 workers per device" in caption
  assert f"{soonest} as measured with 1 to 16 workers on 1 device" in finding


def test_workers_and_batch_are_those_of_the_labels(tmp_path):
  """In the heading and as columns where labels set them; the number of examples is the same."""
  lines = [rising(0.1, 0.5, 0.96)] * 2
  runs, given = {"easgd": lines, "local_sgd": lines, "dasgd": lines}, {"local_sgd": {"workers": 1, "batch": 128}}
  for name, settings, workers, batch in (("same", {}, "8", "16"), ("varying", given, "1 to 8", "16 to 128")):
    folder = comparison(tmp_path / name, runs, settings=settings)
    text = undrawn_page(folder)
    assert f"; {workers} workers, batch of {batch} per worker, 2 seeds." in text
    results = text.partition('id="pictures"')[0]
    shown = [re.findall(rf'<td data-label="{head}"><span>(\d+)</span>', results) for head in ("workers", "batch")]
    assert shown == ([["8", "1", "8"], ["16", "128", "16"]] if settings else [[], []])
    head, _, *body = [line.split() for line in report.table(folder).splitlines()[:5]]
    assert (head[1:3] == ["workers", "batch"]) == bool(settings)
    assert not settings or [line[1:3] for line in body] == [["8", "16"], ["1", "128"], ["8", "16"]]


def test_strings_are_escaped_and_a_regression_is_drawn_by_its_loss(tmp_path):
  lines = [rising(0.1, 0.6, 0.9, 0.999) for _ in range(2)]
  for line in [*lines[0], *lines[1]]:
    del line["test_accuracy"]
  hostile = "<script>alert('&')</script>"
  runs = {"local_sgd": lines, f"{hostile} $x$".replace("/", "|"): lines, "dasgd": []}
  folder = comparison(tmp_path, runs, metric="test_loss", value=0.2, title=hostile, data=hostile, command=hostile)
  text = undrawn_page(folder)
  assert "<script>alert" not in text and "&lt;script&gt;" in text and text.count("</script>") == 2
  assert "keep is 3; the share lies in 0..1" in text and "no result" in text
  names = ["loss_vs_bytes", "loss_vs_examples", "loss_vs_seconds"]  # all distances are zero
  assert sorted(each.stem for each in tmp_path.glob("figures/*.png")) == names
  chart = curve_data.chart(reader.read(folder), "examples", "test_loss")
  assert chart.log_y and chart.target == 0.2
  assert "0.001" in report.table(folder)


def test_a_comparison_without_results_still_reports(tmp_path):
  folder = comparison(tmp_path, {"dasgd": [], "easgd": []})
  assert "No algorithm has a result" in undrawn_page(folder)
  assert report.table(folder).count("no result") == 2
  assert not (tmp_path / "figures").exists()


@pytest.mark.filterwarnings("error")
def test_odd_values_are_drawn_without_a_warning(tmp_path):
  start = rising(0.1)  # nothing but the line before training
  odd = rising(0.1, 0.5, 0.9, 0.99999)
  for line, distance, loss in zip(odd, [0, 1, 1e-3, 0], [-1.0, -2.0, 50.0, 0.0], strict=True):
    line.update(distance=distance, test_loss=loss, seconds=1000 * line["seconds"])
  pictured = {"easgd": [start, rising(0.1, math.nan)], "local_sgd": [odd, odd], "dasgd": [rising(0.1, 0.5, 1.0)] * 2}
  found = curves.pictures(reader.read(comparison(tmp_path, pictured, metric="test_loss", value=0.0)))
  distance = found[-1]
  assert distance.name == "distance_vs_examples"
  assert "local_sgd 0.001" in distance.alt  # where it ends is its last figure above zero
  assert all(picture.svg.startswith("<?xml") and picture.narrow for picture in found)
  lines = curve_data.chart(reader.read(tmp_path), "examples", "distance")
  assert lines.log_y and [line.label for line in lines.lines] == ["local_sgd"]
  assert not curve_data.chart(reader.read(tmp_path), "examples", "test_loss").log_y  # negative losses
  (tmp_path / "start").mkdir()
  assert "stopped at step 0" in undrawn_page(comparison(tmp_path / "start", {"easgd": [start]}))


def test_the_axis_holds_a_target_that_nobody_comes_near(tmp_path):
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.2, 0.3)]})
  low, high = curve_data.chart(reader.read(folder), "examples", "test_accuracy").limits
  assert low < 0.2 and 0.95 < high <= 1.005


def test_bad_folders_are_refused(tmp_path):
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


def test_the_report_needs_no_jax_and_the_table_no_matplotlib():
  code = "import sys, ddl.report.page, ddl.report.figures.style; "
  code += "print({'jax', 'matplotlib', 'jinja2'} & set(sys.modules))"
  root = Path(report.__file__).parents[2]
  done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "set()"
