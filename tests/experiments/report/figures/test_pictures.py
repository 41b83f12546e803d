"""Pictures: their files, what their CSV holds, and what tells many algorithms apart."""

import csv
import math
import re

import numpy as np
import pytest
from helpers.comparisons import comparison, rising
from helpers.grids import grid

from ddl.report import interactive_chart, page, reader
from ddl.report.figures import curve_data, curves
from ddl.report.figures.style import COLOURS, DARK, DARK_SEQUENCE, MANY, PAPER, SEQUENCE, line_styles


@pytest.fixture(scope="module")
def folder(realistic_page):
  return realistic_page.parent


def test_a_csv_holds_what_is_drawn(folder, tmp_path):
  found = reader.read(folder)
  chart = curve_data.chart(found, "examples", "test_accuracy")
  path = page.pictures(folder, found).curves[0].save(tmp_path / "a.csv")
  with path.open() as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0])[:4] == ["label", "line", "examples", "test_accuracy"]
  for line in chart.lines:
    mine = [row for row in rows if row["label"] == line.label]
    means = [row for row in mine if row["line"] == "mean"]
    for name, values in (("examples", line.x), ("test_accuracy", line.mean)):
      np.testing.assert_allclose([float(row[name]) for row in means], values, rtol=1e-7)
    for name, values in zip(("test_accuracy_low", "test_accuracy_high"), line.band, strict=True):
      np.testing.assert_allclose([float(row[name]) for row in means], values, rtol=1e-7)
    names = {row["line"] for row in mine}
    assert names == ({"mean", "seed 0", "seed 2", "end of seed 1"} if line.label == "dasgd d=4" else {"mean"})


def test_the_suffix_says_how_a_picture_is_saved(tmp_path):
  found = reader.read(comparison(tmp_path / "c", {"easgd $x$ <b>&": [rising(0.1, 0.5, 0.96)]}))
  picture, again = curves.pictures(found)[0], curves.pictures(found)[0]
  heads = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG", "csv": b"label,"}
  for kind, head in heads.items():
    path = picture.save(tmp_path / f"a.{kind}")
    assert path.read_bytes().startswith(head)
    assert path.read_bytes() == again.save(tmp_path / f"b.{kind}").read_bytes()
  with pytest.raises(FileNotFoundError, match="figs is no folder"):
    picture.save(tmp_path / "figs/a.pdf")
  with pytest.raises(ValueError, match=r"a\.jpg.*\.pdf"):
    picture.save(tmp_path / "a.jpg")


def width(png):
  return int.from_bytes(png[16:20], "big")


def test_a_notebook_shows_a_picture_no_wider_than_itself_and_names_it_in_a_line(tmp_path):
  found = reader.read(comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96)]}))
  picture = curves.pictures(found)[0]
  assert 700 <= width(picture._repr_png_()) <= 900
  assert "accuracy_vs_examples" in repr(picture) and len(repr(picture)) < 200


def test_a_picture_for_a_paper_has_no_title_and_is_as_narrow_as_a_phones(tmp_path):
  found = reader.read(comparison(tmp_path / "c", {"easgd": [rising(0.1, 0.5, 0.96)] * 3}))
  picture = curves.pictures(found)[0]
  plain, bare, narrow, both = (
    picture.save(tmp_path / f"{number}.svg", **how).read_text()
    for number, how in enumerate(({}, {"title": False}, {"narrow": True}, {"title": False, "narrow": True}))
  )

  def titled(svg):
    return "Test accuracy against" in " ".join(re.findall(r"<!-- (.*?) -->", svg, re.S))

  def size(svg):
    return tuple(float(part) for part in re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"|$', svg).groups())

  assert [titled(svg) for svg in (plain, bare, narrow, both)] == [True, False, True, False]
  assert size(bare)[1] < size(plain)[1] - 15 and size(both)[1] < size(narrow)[1] - 15
  assert size(narrow)[0] == pytest.approx(4.3 * 72) and size(both)[0] <= 4.4 * 72
  assert [svg.count('<g id="axes_') for svg in (plain, both)] == [2, 1]  # a column has no room for small axes
  assert picture.save(tmp_path / "again.svg").read_text() == plain


@pytest.mark.parametrize("count", [4, 40])
def test_the_figure_of_a_column_has_bands_and_a_key_of_the_lines_in_front(tmp_path, count):
  runs = {f"a{n}": [rising(*[0.1] * (1 + n % 9), 0.1 * seed, *[0.96] * 9) for seed in range(3)] for n in range(count)}
  found = reader.read(comparison(tmp_path, runs))
  front = [number for number, style in enumerate(line_styles(found)) if style.front]
  (axes,) = (figure := curves.pictures(found)[0].column()).axes
  assert len(axes.collections) == len(front)
  texts = [text.get_text() for text in figure.texts]
  assert {f"a{number}" for number in front} <= {*texts}
  assert any(text.startswith(f"thin: {count - len(front)} others") for text in texts) == (count > len(front))


def styled(folder, count, groups=None):
  """Labels a0, a1, ...: each later one needs longer; their styles."""
  runs = {f"a{n}": [rising(*[0.1] * (1 + n), *[0.96] * (count + 1 - n))] * 2 for n in range(count)}
  places = {label: {"group": group} for label, group in (groups or {}).items()}
  return line_styles(reader.read(comparison(folder, runs, places=places)))


@pytest.mark.parametrize("count", [1, 8, 12, 40])
def test_no_two_algorithms_look_alike(tmp_path, count):
  found = styled(tmp_path, count)
  assert len({(style.colour, style.dashes) for style in found}) == count
  front = [number for number, style in enumerate(found) if style.front]
  assert front == list(range(count if count <= MANY else len(COLOURS)))  # the soonest
  assert count == 12 or len({found[number].colour for number in front}) == len(front)
  assert count == 12 or {found[number].dashes for number in front} == {()}  # they get the first styles


@pytest.mark.parametrize("size", [2, 10])
def test_a_group_has_one_colour_and_of_many_its_best_stands_out(tmp_path, size):
  groups = {f"a{n}": f"group {n % 4}" for n in range(4 * size)}
  found = styled(tmp_path, 4 * size, groups)
  assert [style.colour for style in found] == list(COLOURS[:4]) * size
  assert all(style.grouped for style in found)
  front = [number for number, style in enumerate(found) if style.front]
  assert front == list(range(4 if size > 2 else 8))
  assert [found[number].dashes for number in range(4)] == [()] * 4


@pytest.mark.parametrize("keys", [(4, 3), (3, 4, 2), (6,), (8, 5)])
def test_a_grid_of_one_algorithm_has_colours_by_its_first_key_and_dashes_by_the_others(tmp_path, keys):
  names = ("workers", "algorithm.period", "batch")
  axes = {name: tuple(range(1, 1 + size)) for name, size in zip(names, keys, strict=False)}
  found = reader.read(grid(tmp_path, axes, lambda group, point, seed: 0.01 / sum(point.values()), groups=("easgd",)))
  styles = line_styles(found)
  points = [tuple(result.info["point"].values()) for result in found.results]
  assert len({(style.colour, style.dashes) for style in styles}) == len(points) == math.prod(keys)
  by_colour = {}
  for style, point in zip(styles, points, strict=True):
    by_colour.setdefault(style.colour, set()).add(point[0])
  assert [*by_colour.values()] == [{value} for value in axes["workers"]]
  assert [*by_colour] == sorted(by_colour, key=SEQUENCE.index)
  assert len({(style.dashes, style.marker) for style in styles}) == math.prod(keys[1:])
  assert sum(style.front for style in styles) == (len(points) if len(points) <= MANY else len(COLOURS))
  shown = interactive_chart.content(found)
  assert [(line["colours"][0], tuple(line["dashes"])) for line in shown["lines"]] == [
    (style.colour, style.dashes) for style in styles
  ]
  assert all(light != dark for light, dark in (line["colours"] for line in shown["lines"]))


@pytest.mark.parametrize(("colours", "paper"), [(SEQUENCE, PAPER), (DARK_SEQUENCE, DARK[PAPER])])
def test_the_colours_of_a_sequence_are_told_from_the_page_and_ordered(colours, paper):
  """WCAG 2: a contrast of 3 for what is no text."""

  def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

  found, of_paper = [luminance(colour) for colour in colours], luminance(paper)
  assert found == sorted(found)
  assert all((max(each, of_paper) + 0.05) / (min(each, of_paper) + 0.05) >= 3 for each in found)


@pytest.mark.slow
def test_forty_algorithms_are_drawn(tmp_path):
  runs = {f"a{n}": [rising(*[0.1] * (1 + n % 9), *[0.96] * 9)] * 2 for n in range(40)}
  picture = curves.pictures(reader.read(comparison(tmp_path, runs)))[0]
  width, height = picture.figure.get_size_inches()
  assert height < 1.5 * width and len(picture.figure.axes) == 41
  inside = [axes.get_position() for axes in picture.figure.axes]
  assert all(0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1 for box in inside)
  assert not any(
    a is not b and min(a.x1, b.x1) > max(a.x0, b.x0) + 1e-9 and min(a.y1, b.y1) > max(a.y0, b.y0) + 1e-9
    for a in inside
    for b in inside
  )
  assert math.isclose(picture.figure.axes[1].get_ylim()[0], picture.figure.axes[0].get_ylim()[0])
