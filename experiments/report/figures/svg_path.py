"""Outlines of an SVG's paths: read, cut to what is seen, thinned, and written with relative coordinates."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
FINE, COARSE = 2, 1  # decimals of small shapes such as markers, and of others
SMALL, BESIDE, SEEN = 20.0, 6.0, 0.1  # points: a small shape; kept beside the box; how far thinning moves a line
PLAIN = {"M": 1, "L": 1, "z": 0}


class Piece(NamedTuple):
  """A command of M, L, Q, C and z, with its points."""

  command: str
  points: list[Point]


def parse(text: str) -> list[Piece]:
  """An outline as matplotlib writes it, with absolute coordinates."""
  found: list[Piece] = []
  numbers: list[float] = []
  for token in text.split():
    if token.isalpha():
      found.append(Piece(token, []))
      numbers = []
      continue
    numbers.append(float(token))
    if len(numbers) == 2:
      found[-1].points.append((numbers[0], numbers[1]))
      numbers = []
  return found


def moved(pieces: Sequence[Piece], x: float, y: float) -> list[Piece]:
  """The outline elsewhere."""
  return [Piece(command, [(a + x, b + y) for a, b in points]) for command, points in pieces]


def seen(pieces: list[Piece], box: Box) -> list[Piece]:
  """A line or a polygon without what lies outside the box, and without points that change nothing that is seen.

  The shape inside the box is the same wherever the figure's edge has cut the line before, so that equal lines in
  equal axes stay equal.
  """
  if any(PLAIN.get(each.command) != len(each.points) for each in pieces) or len(pieces) < 3:
    return pieces
  if [each.command for each in pieces].count("M") != 1:
    return pieces
  closed = pieces[-1].command == "z"
  points = [point for each in pieces for point in each.points]
  box = (box[0] - BESIDE, box[1] - BESIDE, box[2] + BESIDE, box[3] + BESIDE)
  lines = [_polygon(points, box)] if closed else _lines(points, box)
  found = []
  for line in lines:
    kept = thinned(line)
    found += [Piece("L" if number else "M", [point]) for number, point in enumerate(kept)]
    found += [Piece("z", [])] * (closed and len(kept) > 0)
  return found


def _polygon(points: list[Point], box: Box) -> list[Point]:
  """Sutherland and Hodgman's clipping by one edge of the box after another."""
  for axis, edge, sign in ((0, box[0], 1), (1, box[1], 1), (0, box[2], -1), (1, box[3], -1)):
    found: list[Point] = []
    for before, here in zip(points[-1:] + points[:-1], points, strict=True):
      inside = [sign * (point[axis] - edge) >= 0 for point in (before, here)]
      if inside[0] != inside[1]:
        found.append(_between(before, here, (edge - before[axis]) / (here[axis] - before[axis])))
      if inside[1]:
        found.append(here)
    points = found
  return points


def _lines(points: Sequence[Point], box: Box) -> list[list[Point]]:
  """The parts of a line inside the box."""
  found: list[list[Point]] = []
  for before, here in pairwise(points):
    span = _inside(before, here, box)
    if span is None:
      continue
    start, end = _between(before, here, span[0]), _between(before, here, span[1])
    if not found or found[-1][-1] != start:
      found.append([start])
    found[-1].append(end)
  return found


def _inside(before: Point, here: Point, box: Box) -> tuple[float, float] | None:
  """Liang and Barsky: between which shares of its length a segment is inside the box."""
  low, high = 0.0, 1.0
  for axis in (0, 1):
    length = here[axis] - before[axis]
    for room, step in ((before[axis] - box[axis], length), (box[axis + 2] - before[axis], -length)):
      if step == 0:
        if room < 0:
          return None
      elif step > 0:
        low = max(low, -room / step)
      else:
        high = min(high, -room / step)
  return (low, high) if low < high else None


def _between(before: Point, here: Point, share: float) -> Point:
  if share in (0.0, 1.0):
    return here if share else before
  return before[0] + share * (here[0] - before[0]), before[1] + share * (here[1] - before[1])


def thinned(points: Sequence[Point]) -> list[Point]:
  """Ramer, Douglas and Peucker: as few of the points as stay within SEEN of the line."""
  if len(points) < 3:
    return list(points)
  at, kept, open_parts = np.array(points), {0, len(points) - 1}, [(0, len(points) - 1)]
  while open_parts:
    first, last = open_parts.pop()
    if last - first < 2:
      continue
    along = at[last] - at[first]
    from_first, length = at[first + 1 : last] - at[first], float(along @ along)
    shares = np.clip(from_first @ along / length, 0, 1)[:, None] if length else 0.0
    far = np.hypot(*(from_first - shares * along).T)
    most = int(np.argmax(far))
    if far[most] > SEEN:
      middle = first + 1 + most
      kept.add(middle)
      open_parts += [(first, middle), (middle, last)]
  return [points[number] for number in sorted(kept)]


def written(pieces: Sequence[Piece], whole: bool = False) -> str:
  """The outline with coordinates relative to its first point. whole: they are integers.

  What is rounded are the distances from that point, so that errors do not add up and equal shapes stay equal.
  """
  points = [point for each in pieces for point in each.points]
  if not points:
    return ""
  (x, y), at, text, last = points[0], (0.0, 0.0), "", ""
  size = max(max(values) - min(values) for values in zip(*points, strict=True))
  decimals = 0 if whole else FINE if size < SMALL else COARSE
  for command, ends in pieces:
    if command == "z":
      text, last = text + "z", ""
      continue
    steps = [(round(a - x, decimals), round(b - y, decimals)) for a, b in ends]
    if command == "M":
      start = (x + steps[0][0], y + steps[0][1])
      text, last = f"{text}M{_pair(start, FINE)}", ""
    else:
      told = "".join(_next(_pair((a - at[0], b - at[1]), decimals)) for a, b in steps)
      text += told if command == last else command.lower() + told.lstrip()
      last = command
    at = steps[-1]
  return text


def number(value: float, decimals: int = FINE) -> str:
  """Short: .5, -.5, 0."""
  text = f"{value:.{decimals}f}"
  text = text.rstrip("0").rstrip(".") if "." in text else text
  if text.strip("-") in ("0", ""):
    return "0"
  return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _pair(point: Point, decimals: int) -> str:
  return number(point[0], decimals) + _next(number(point[1], decimals))


def _next(text: str) -> str:
  return text if text.startswith("-") else f" {text}"
