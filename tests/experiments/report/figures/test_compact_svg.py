"""Pictures of pages: smaller files of the same shapes."""

import base64
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from helpers.comparisons import comparison, metrics

from ddl.report import reader
from ddl.report.figures import curves, picture, style, svg
from ddl.report.figures.svg import compact

MOST = 2.4e6 / 10  # of three megabytes of a page what its ten pictures, five of them for phones, may have each
BOX = (0.0, 0.0, 100.0, 50.0)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
  """A picture of forty algorithms."""
  rng = np.random.default_rng(0)
  runs = {
    f"algorithm {n}": [metrics(rng, 10, 0.012 + 0.02 * rng.random(), 0.96, 4e4, every=10) for _ in range(3)]
    for n in range(40)
  }
  return curves.pictures(reader.read(comparison(tmp_path_factory.mktemp("many"), runs)))[2]  # of time: the heaviest


@pytest.mark.slow
def test_a_page_of_forty_algorithms_has_small_pictures(many):
  assert max(len(many.wide), len(many.narrow)) < MOST < len(picture._embedded(many.svg))


def test_what_is_used_is_defined_and_texts_stay(many):
  large, small = picture._written(many.figure), compact(picture._written(many.figure))
  root = ET.fromstring(small)
  ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
  used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', small))
  assert {a or b for a, b in used} == ids
  assert re.findall("<!--.*?-->", large) == re.findall("<!--.*?-->", small)
  names = set(re.findall(r'class="([^"]+)"', small))
  assert names == set(re.findall(r"\.(s\d+)\{", small))
  uri = many.wide.partition("base64,")[2]
  assert "prefers-color-scheme:dark" in base64.b64decode(uri).decode()


def points(text):
  """The corners of a relative outline of m, l and z, by hand."""
  found, at = [], (0.0, 0.0)
  for command, rest in re.findall(r"([Mlz])([^Mlz]*)", text):
    values = [float(each) for each in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest)]
    for x, y in zip(values[::2], values[1::2], strict=True):
      at = (x, y) if command == "M" else (at[0] + x, at[1] + y)
      found.append(at)
  return np.array(found)


def distance(many, line):
  """The largest distance of points from a line through corners."""
  start, along = line[:-1], np.diff(line, axis=0)
  share = np.clip(((many[:, None] - start) * along).sum(-1) / (along**2).sum(-1), 0, 1)
  return np.linalg.norm(many[:, None] - start - share[..., None] * along, axis=-1).min(axis=1).max()


@pytest.mark.parametrize("seed", range(4))
def test_a_line_stays_where_it_is_within_the_box(seed):
  rng = np.random.default_rng(seed)
  line = np.column_stack([np.linspace(-20, 120, 300), 25 + 3 * rng.standard_normal(300).cumsum()])
  text = "M " + " L ".join(f"{x} {y}" for x, y in line)
  drawn = points(svg.written(svg.seen(svg.parse(text), BOX)))
  inside = line[((line > BOX[:2]) & (line < BOX[2:])).all(axis=1)]
  assert len(inside) > 10 and distance(inside, drawn) < svg.SEEN + 0.08 and len(drawn) < len(line)
  edge = np.array(BOX) + svg.BESIDE * np.array([-1, -1, 1, 1])
  assert (drawn >= edge[:2] - 0.08).all() and (drawn <= edge[2:] + 0.08).all()


def test_equal_lines_in_equal_boxes_are_one_shape_although_the_figure_has_cut_them():
  line = [(0.0, 10.0), (30.0, 200.0), (60.0, 20.0), (100.0, 30.0)]
  cut = [(0.0, 10.0), (10.0, 10.0 + 190 / 3), (50.0, 80.0), (60.0, 20.0), (100.0, 30.0)]  # at y = 73 1/3 and 80
  shapes = set()
  for corners, (x, y) in ((line, (0.0, 0.0)), (cut, (111.37, 77.91))):
    text = "M " + " L ".join(f"{a + x} {b + y}" for a, b in corners)
    pieces = svg.seen(svg.parse(text), (x, y, x + 100, y + 50))
    shapes.add(re.sub(r"M[-\d.]+ [-\d.]+", "M", svg.written(pieces)))
  assert len(shapes) == 1 and shapes.pop().count("M") == 2  # it leaves the box and comes back


def test_a_band_is_cut_as_a_polygon():
  text = "M -50 10 L 150 10 L 150 40 L -50 90 z"
  drawn = points(svg.written(svg.seen(svg.parse(text), BOX)))
  x, y = drawn.T
  area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
  across = np.linspace(-6, 106, 100_001)
  assert area == pytest.approx(np.trapezoid(np.minimum(56, 90 - (across + 50) / 4) - 10, across), rel=1e-3)


@pytest.mark.parametrize("value, text", [(0.5, ".5"), (-0.5, "-.5"), (0.001, "0"), (-0.001, "0"),
                                         (100.25, "100.25"), (20.1, "20.1"), (0.0, "0"), (10.05, "10.05")])  # fmt: skip
def test_numbers_are_short(value, text):
  assert svg.number(value) == text


def test_a_line_that_lies_outside_its_axes_as_a_whole_is_left_out():
  """Such as that of an algorithm far below the others: its path has neither a shape nor a name."""
  figure = style.blank((4, 3))
  axes = figure.add_subplot()
  axes.plot([0, 1, 2], [0.1, 0.1, 0.1])
  axes.plot([0, 1, 2], [0.91, 0.95, 0.97])
  axes.set_ylim(0.9, 1.0)
  large = picture._written(figure)
  assert re.search(r"<path (?![^>]*\bd=)(?![^>]*\bid=)[^>]*/>", large)
  paths = [each for each in ET.fromstring(compact(large)).iter() if each.tag.endswith("path")]
  assert paths and all("d" in each.attrib for each in paths)
