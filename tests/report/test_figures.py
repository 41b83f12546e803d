"""Figures: files, curves, axes, and line styles of many algorithms."""

import csv
import json
import math
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.comparisons import ALGORITHMS, BATCH, WORKERS, comparison, frames_of, rising
from helpers.grids import grid
from pandas import DataFrame

from ddl.report import curves, figure, page, reader
from ddl.report.figure import COLOURS, MANY, SEQUENCE
from ddl.report.statistics import summary


def drawn(folder, x, y):
  return curves.curve_figure(frames_of(folder), x, y)


def lines_of(folder, y, label, line="mean"):
  result, _ = curves.data(reader.read(folder), y)
  return result[(result.label == label) & (result.line == line)]


def test_csv_has_the_plotted_values(realistic_page, tmp_path):
  folder = realistic_page.parent
  with drawn(folder, "examples", "test_accuracy").save(tmp_path / "a.csv").open() as file:
    rows = list(csv.DictReader(file))
  columns = ["label", "line", "examples", "test_accuracy", "test_accuracy_low", "test_accuracy_high"]
  assert list(rows[0]) == columns
  runs = reader.read(folder).results[1].runs
  local = [row for row in rows if row["label"] == "local_sgd"]
  mean, half = summary([run["test_accuracy"][7] for run in runs.values()])
  np.testing.assert_allclose([float(local[7][name]) for name in columns[3:]], (mean, mean - half, mean + half))
  assert [float(row["examples"]) for row in local] == runs[0]["examples"].tolist()
  for label in ALGORITHMS:
    names = {row["line"] for row in rows if row["label"] == label}
    assert names == ({"mean", "seed 0", "seed 2", "end of seed 1"} if label == "dasgd d=4" else {"mean"})


def test_mean_ends_with_the_shortest_seed_and_other_seeds_continue(tmp_path):
  whole = rising(0.1, 0.5, 0.9, 0.96)
  folder = comparison(tmp_path, {"easgd": [whole, rising(0.1, 0.4, math.nan), whole]})
  line = lines_of(folder, "test_accuracy", "easgd")
  assert line.examples.tolist() == [0, 1280]
  np.testing.assert_allclose(line.y, [0.1, 1.4 / 3])
  end = lines_of(folder, "test_accuracy", "easgd", "end of seed 1")
  assert end[["examples", "y"]].values.tolist() == [[1280, 0.4]]
  for seed in ("seed 0", "seed 2"):
    rest = lines_of(folder, "test_accuracy", "easgd", seed)
    assert rest[["examples", "y"]].values.tolist() == [[1280, 0.5], [2560, 0.9], [3840, 0.96]]


def test_two_seeds_are_drawn_without_a_band_and_have_a_warning(tmp_path):
  seeds = [rising(0.1, 0.5, 0.9), rising(0.1, 0.6, 0.94)]
  for count in (1, 2, 3):
    folder = comparison(tmp_path / str(count), {"easgd": (seeds + seeds)[:count]})
    result, _ = curves.data(reader.read(folder), "test_accuracy")
    assert set(result.line) == ({"mean", "seed 0", "seed 1"} if count == 2 else {"mean"})
    assert result.low.notna().all() == (count == 3)
    reported = " ".join(page.table(folder).split())
    assert ("mean little" in reported, "only one seed" in reported) == (count == 2, count == 1)


def test_log_axis_has_means_and_bands_of_logarithms(tmp_path):
  seeds = [rising(0.1, 0.5) for _ in range(3)]
  for seed, last in zip(seeds, (0.02, 0.08, 0.04), strict=True):
    seed[0]["test_loss"], seed[1]["test_loss"] = 2.0, last
  folder = comparison(tmp_path, {"easgd": seeds})
  assert curves.data(reader.read(folder), "test_loss")[1]
  line = lines_of(folder, "test_loss", "easgd")
  np.testing.assert_allclose(line.y, [2.0, 0.04])
  ratio = 2 ** (4.302652729911275 / math.sqrt(3))  # t(0.975, 2) s / sqrt(n) of the logarithms to base 2
  np.testing.assert_allclose(line[["low", "high"]].iloc[1], [0.04 / ratio, 0.04 * ratio])


def test_noise_scale_skips_gaps_and_marks_the_global_batch(tmp_path):
  runs = {"easgd": [rising(0.1, 0.5, 0.9, 0.96) for _ in range(2)], "local_sgd": [rising(0.1, 0.5, 0.9, 0.96)] * 2}
  for lines, scales in zip(runs["easgd"], ((20.0, None, 40.0, 60.0), (20.0, 30.0, 40.0, None)), strict=True):
    for line, scale in zip(lines, scales, strict=True):
      line["noise_scale"] = scale
  folder = comparison(tmp_path / "a", runs)
  np.testing.assert_allclose(lines_of(folder, "noise_scale", "easgd").y, [20.0, 30.0, 40.0])
  assert curves.target_of(reader.read(folder), "noise_scale") == WORKERS * BATCH
  captions = {picture.name: str(picture.caption) for picture in curves.pictures(frames_of(folder))}
  assert "; dotted: the global batch." in captions["noise_scale_vs_examples"]
  other = comparison(tmp_path / "b", runs, settings={"easgd": {"workers": 1}})
  assert "dotted" not in str(drawn(other, "examples", "noise_scale").caption)


def limits(folder):
  record = reader.read(folder)
  return curves.limits_of(record, curves.data(record, "test_accuracy")[0], "test_accuracy")


def test_accuracy_axis_shows_the_differences_at_the_end_without_failed_algorithms(tmp_path):
  slow, fast = rising(0.1, 0.3, 0.4, 0.94), rising(0.1, 0.9, 0.97, 0.975)
  low, high = limits(comparison(tmp_path / "a", {"easgd": [slow] * 3, "local_sgd": [fast] * 3}))
  assert 0.9 <= low < 0.94 and 0.975 < high < 0.985
  folder = comparison(tmp_path / "b", {"easgd": [rising(0.1, 0.2, 0.3)]})
  low, high = limits(folder)
  assert low < 0.2 and 0.95 < high <= 1.005
  chart = drawn(folder, "examples", "test_loss").spec()["vconcat"][0]  # the axis of a loss does not begin at zero
  assert chart["encoding"]["y"]["scale"] == {"type": "linear", "nice": False, "zero": False}
  # the caption names a failed algorithm with its final value; one that is only worse stays on the axis
  good, worse, bad = rising(0.1, 0.9, 0.97), rising(0.1, 0.8, 0.86), rising(0.1, 0.2, 0.12)
  folder = comparison(tmp_path / "c", {"easgd": [good] * 2, "local_sgd": [worse] * 2, "dasgd": [bad] * 2})
  (note,) = [text for text in drawn(folder, "examples", "test_accuracy").caption if "12.00 %" in text]
  assert "dasgd" in note and "local_sgd" not in note and 0.7 < limits(folder)[0] < 0.86


def test_algorithms_that_send_nothing_are_not_drawn_against_bytes(tmp_path):
  runs = {"independent": [rising(0.1, 0.5, 0.96, bytes_sent=0)] * 2, "easgd": [rising(0.1, 0.5, 0.96)] * 2}
  result = drawn(comparison(tmp_path, runs), "bytes_sent", "test_accuracy")
  assert set(result.data.label) == {"easgd"} and (result.data.bytes_sent > 0).all()
  assert "independent (ends at 96.00 %)" in result.caption[0]


@pytest.mark.filterwarnings("error")
def test_unusual_values_give_no_warning(tmp_path):
  start = rising(0.1)  # only the evaluation before training
  odd = rising(0.1, 0.5, 0.9, 0.99999)
  for line, distance, loss in zip(odd, [0, 1, 1e-3, 0], [-1.0, -2.0, 50.0, 0.0], strict=True):
    line.update(distance=distance, test_loss=loss, seconds=1000 * line["seconds"])
  runs = {"easgd": [start, rising(0.1, math.nan)], "local_sgd": [odd, odd], "dasgd": [rising(0.1, 0.5, 1.0)] * 2}
  folder = comparison(tmp_path, runs, metric="test_loss", value=0.0)
  result = curves.pictures(frames_of(folder))
  assert result[-1].name == "distance_vs_examples" and "local_sgd 0.001" in result[-1].alt
  assert all(picture.spec() for picture in result) and result[-1].svg.startswith("<svg")
  lines, log = curves.data(reader.read(folder), "distance")
  assert log and set(lines.label) == {"local_sgd"}
  assert not curves.data(reader.read(folder), "test_loss")[1]  # negative losses


def test_suffix_selects_the_format(tmp_path):
  picture = drawn(comparison(tmp_path / "c", {"easgd $x$ <b>&": [rising(0.1, 0.5, 0.96)]}), "examples", "test_accuracy")
  heads = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG", "csv": b"label,"}
  for kind, head in heads.items():
    content = picture.save(tmp_path / f"a.{kind}").read_bytes()
    assert content.startswith(head) and (kind != "pdf" or b"/FontFile2" in content)  # fonts are embedded
  with pytest.raises(FileNotFoundError, match="figs"):
    picture.save(tmp_path / "figs/a.pdf")
  with pytest.raises(ValueError, match=r"\.pdf.*a\.jpg"):
    picture.save(tmp_path / "a.jpg")
  for narrow in (False, True):
    head, _, svg = picture.embedded(narrow).partition(",")
    texts = [element.text for element in ElementTree.fromstring(unquote(svg)).iter() if element.tag.endswith("text")]
    assert head == "data:image/svg+xml" and "easgd $x$ <b>&" in texts and '"' not in svg
  assert "accuracy_vs_examples" in repr(picture) and len(repr(picture)) < 200
  assert 700 <= int.from_bytes(picture._repr_png_()[16:20], "big") <= 950  # of a notebook


def test_paper_figures_have_no_title_and_narrow_ones_no_panels(tmp_path):
  picture = drawn(comparison(tmp_path / "c", {"easgd": [rising(0.1, 0.5, 0.96)] * 3}), "examples", "test_accuracy")
  specs = picture.spec(), picture.spec(title=False), picture.spec(narrow=True)
  assert [("title" in spec, "vconcat" in spec) for spec in specs] == [(True, True), (False, True), (True, False)]
  files = (picture.save(tmp_path / "plain.svg"), picture.save(tmp_path / "narrow.svg", narrow=True))
  widths = [float(re.search(r'width="([\d.]+)"', file.read_text())[1]) for file in files]
  assert widths[0] == pytest.approx(figure.WIDE, rel=0.05) and widths[1] <= 4.4 * 72


@pytest.mark.parametrize("narrow, characters", [(True, 37), (False, 91)])  # bold characters are 7 points wide
def test_titles_are_as_wide_as_the_axes(narrow, characters):
  title = "Fewest bytes per worker to 95 %: local SGD (465 kB) and DaSGD (501 kB), not significantly different, " * 2
  lines = figure.Figure("a", title, title, "", [], lambda _: {}, DataFrame()).spec(narrow=narrow)["title"]["text"]
  assert " ".join(lines) == title.strip() and max(map(len, lines)) <= characters


@pytest.mark.parametrize("count", [8, 12, 40])
def test_prominent_lines_have_distinct_styles(tmp_path, count):
  runs = {f"a{n}": [rising(*[0.1] * (1 + n), *[0.96] * (count + 1 - n))] * 2 for n in range(count)}
  result = figure.styles(frames_of(comparison(tmp_path, runs)))  # each label is slower than the previous one
  front = result[result.front]
  assert front.index.tolist() == list(range(count if count <= MANY else len(COLOURS)))  # the fastest
  assert not result.duplicated(["colour", "dash"]).any()
  assert count == 12 or (len(set(front.colour)) == len(front) and set(front.dash) == {(1, 0)})


def test_a_group_has_one_colour(tmp_path):
  places = {f"a{n}": {"group": f"group {n % 4}"} for n in range(8)}
  result = figure.styles(frames_of(comparison(tmp_path, {key: [rising(0.1, 0.96)] for key in places}, places=places)))
  assert result.colour.tolist() == list(COLOURS[:4]) * 2 and not result.duplicated(["colour", "dash"]).any()


@pytest.mark.parametrize("keys", [(4, 3), (6,), (3, 2, 2)])
def test_grid_colours_follow_the_first_key_and_dashes_the_others(tmp_path, keys):
  names = ("workers", "algorithm.period", "batch")
  values = {name: tuple(range(1, 1 + size)) for name, size in zip(names, keys, strict=False)}
  folder = grid(tmp_path, values, lambda group, point, seed: 0.01 / sum(point.values()), groups=("easgd",))
  output = figure.styles(frames_of(folder))
  first = [result.info["point"]["workers"] for result in reader.read(folder).results]
  assert not output.duplicated(["colour", "dash"]).any()
  by_value = dict(zip(first, output.colour, strict=True))
  assert [by_value[value] for value in first] == output.colour.tolist()
  assert [by_value[value] for value in sorted(by_value)] == sorted(by_value.values(), key=SEQUENCE.index)


def test_colours_contrast_with_a_white_page():
  """WCAG 2 requires a contrast of 3 for graphics."""
  for colour in (*COLOURS[:4], *SEQUENCE):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    assert 1.05 / (luminance + 0.05) >= 2.9, colour


@pytest.mark.parametrize(("longest", "width", "most", "columns"), [(7, 690, 6, 6), (25, 690, 6, 4), (31, 270, 4, 1)])
def test_legends_and_panels_have_as_many_columns_as_labels_fit(longest, width, most, columns):
  assert figure.columns(["a", "a" * longest], width, most) == columns


@pytest.mark.slow
def test_forty_algorithms_have_panels_and_a_small_chart(tmp_path):
  runs = {f"a{n}": [rising(*[0.1] * (1 + n % 9), *[0.96] * 12)] * 3 for n in range(40)}
  folder = comparison(tmp_path, runs)
  svg = drawn(folder, "examples", "test_accuracy").svg
  assert all(f">a{n}<" in svg for n in range(40))
  shown = curves.interactive(frames_of(folder))
  assert len(json.dumps(shown)) < 500_000


def test_limits_leave_little_room_around_possible_shares():
  assert figure.limits([0.01, 0.99], [0.0, 1.0], share=True) == pytest.approx([-0.02, 1.0196])
  assert figure.limits([0.01, 0.99], [0.0, 1.0]) == pytest.approx([-0.0588, 1.0588])
  assert figure.limits([1, 10], [0.001, 20], log=True) == pytest.approx([0.1 * 10**-0.06, 20 * 10**0.06])
