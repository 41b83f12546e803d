"""A smaller SVG of the same picture, for pages, which hold each figure for a screen and for a phone.

matplotlib writes every line out in full, with its style, also the grey ones that all small axes share, and what lies
outside the axes. Here a shape that occurs several times is defined once, coordinates are relative, in tenths of a
point, and styles are classes.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import count, groupby, pairwise
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

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


Element = ET.Element
NAMESPACE, HREF = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
PATH = f"{{{NAMESPACE}}}path"
SHARED = 60  # characters from which on a shape is defined for several uses
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def compact(svg: str) -> str:
  """The picture of a file of matplotlib's, without metadata; comments, which hold its texts, are kept."""
  root = ET.fromstring(svg, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True)))
  for parent in list(root.iter()):  # a line that lies outside its axes as a whole
    for child in [each for each in parent if each.tag == PATH and not {"d", "id"} & {*each.attrib}]:
      parent.remove(child)
  used = Counter(a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
  names = dict(zip(used, _names(), strict=False))
  _clean(root, {f"#{each.attrib['id']}" for each in root.iter(PATH) if "d" not in each.attrib})
  _inline(root, used)
  _outlines(root, _boxes(root), None)
  classes: dict[str, str] = {}
  for element in root.iter():
    if isinstance(element.tag, str):  # else a comment
      _shorten(element, names, classes)
  _flatten(root)
  shapes = _share(root)
  for parent in list(root.iter()):
    _merge(parent, {name: text for text, name in classes.items()})
  style = next(root.iter("style"))
  style.text = (style.text or "") + "".join(f".{name}{{{text}}}" for text, name in classes.items())
  next(root.iter("defs")).extend(shapes)
  root.attrib["xmlns"] = NAMESPACE
  return ET.tostring(root, encoding="unicode").replace(" />", "/>")


def _names() -> Iterator[str]:
  """a, b, ..., z, a1, b1, ..."""
  for place in count():
    yield LETTERS[place % 26] + (str(place // 26) if place >= 26 else "")


def _clean(element: Element, empty: Set[str]) -> None:
  """Drop namespaces, metadata, blanks, and uses of the empty paths that stand for spaces."""
  element.tail = None
  if element.tag is ET.Comment:
    return
  element.tag = element.tag.rpartition("}")[2]
  if HREF in element.attrib:
    element.attrib["href"] = element.attrib.pop(HREF)
  if element.tag != "style":
    element.text = None
  for child in list(element):
    _clean(child, empty)
    if child.tag == "metadata" or (child.tag == "use" and child.attrib["href"] in empty):
      element.remove(child)


def _inline(root: Element, used: Mapping[str, int]) -> None:
  """Write bands, which matplotlib defines and uses once, as paths, so that they can be cut."""
  parents = {child: parent for parent in root.iter() for child in parent}
  defined = {
    each.attrib["id"]: each for each in root.iter("path") if "id" in each.attrib and "transform" not in each.attrib
  }
  for use in list(root.iter("use")):
    name = use.attrib.get("href", "")[1:]
    if name in defined and used[name] == 1 and "transform" not in use.attrib:
      path = defined[name]
      parents[path].remove(path)
      x, y = (float(use.attrib.pop(key, 0)) for key in "xy")
      use.tag, outline = "path", moved(parse(path.attrib["d"]), x, y)
      use.attrib["d"] = " ".join(f"{each.command} " + " ".join(f"{a} {b}" for a, b in each.points) for each in outline)
      use.attrib["style"] = f"{path.attrib.get('style', '')}; {use.attrib.get('style', '')}".strip("; ")
      del use.attrib["href"]


def _boxes(root: Element) -> dict[str, Box]:
  """What clips show, by their reference."""
  found = {}
  for clip in root.iter("clipPath"):
    for rect in clip.iter("rect"):
      x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
      found[f"url(#{clip.attrib['id']})"] = (x, y, x + width, y + height)
  return found


def _outlines(element: Element, boxes: Mapping[str, Box], box: Box | None) -> None:
  """Shorten all paths; box: what is seen of the element."""
  box = boxes.get(element.attrib.get("clip-path", ""), box)
  if element.tag == "path" and "d" in element.attrib:
    pieces = parse(element.attrib["d"])
    element.attrib["d"] = written(seen(pieces, box) if box else pieces, whole="transform" in element.attrib)
  for child in element:
    _outlines(child, boxes, box)


def _shorten(element: Element, names: Mapping[str, str], classes: dict[str, str]) -> None:
  """Short names, a class for the style, and places in hundredths."""
  found = element.attrib
  if (name := found.pop("id", "")) in names:
    found["id"] = names[name]
  if found.get("href", "").startswith("#"):
    found["href"] = f"#{names[found['href'][1:]]}"
  for key in ("clip-path", "style"):
    if key in found:
      found[key] = re.sub(r"url\(#([^)]+)\)", lambda each: f"url(#{names[each[1]]})", found[key])
  if style := found.pop("style", None):
    found["class"] = classes.setdefault(re.sub(r"([;:]) ", r"\1", style), f"s{len(classes)}")
  place = re.fullmatch(r"translate\((\S+) (\S+)\)", found.get("transform", ""))
  if element.tag == "use" and place:
    del found["transform"]
    found |= {"x": place[1], "y": place[2]}
  if element.tag == "use":
    for key in "xy":
      if (text := number(float(found.pop(key, 0)))) != "0":
        found[key] = text


def _flatten(element: Element) -> None:
  """Put the content of groups without a meaning in their place; drop empty paths and definitions."""
  found = []
  for child in element:
    if child.tag is not ET.Comment:
      _flatten(child)
    if child.tag == "g" and not child.attrib:
      found += list(child)
    elif not ((child.tag == "path" and not child.attrib.get("d")) or (child.tag == "defs" and not len(child))):
      found.append(child)
  element[:] = found


def _share(root: Element) -> list[Element]:
  """Replace shapes that occur several times by uses of one; returns the definitions."""
  others = {each for tag in ("defs", "clipPath", "pattern") for inner in root.iter(tag) for each in inner.iter("path")}
  split = {}
  for path in root.iter("path"):
    if path not in others and (found := re.fullmatch(r"M(-?[\d.]+)( |(?=-))(-?[\d.]+)([a-z][^M]*)", path.attrib["d"])):
      split[path] = found[1], found[3], found[4]
  counts = Counter(shape for _, _, shape in split.values())
  shapes: dict[str, Element] = {}
  for path, (x, y, shape) in split.items():
    if counts[shape] > 1 and len(shape) >= SHARED:
      known = shapes.setdefault(shape, ET.Element("path", {"id": f"_{len(shapes)}", "d": f"M0 0{shape}"}))
      path.tag = "use"
      del path.attrib["d"]
      path.attrib |= {"href": f"#{known.attrib['id']}", "x": x, "y": y}
  return list(shapes.values())


def _merge(parent: Element, styles: Mapping[str, str]) -> None:
  """Give neighbours of one style and clip a group that has both, and draw opaque lines among them as one path.

  A shape that is used must not have the clip itself, which would move with it.
  """

  def kind(element: Element) -> Any:
    alike = element.tag in ("path", "use") and not {"transform", "id"} & element.attrib.keys()
    return (element.attrib.get("class"), element.attrib.get("clip-path")) if alike else element

  found = []
  for key, members in groupby([] if parent.tag == "defs" else list(parent), kind):
    each = list(members)
    if not isinstance(key, tuple) or not any(key) or (len(each) == 1 and (each[0].tag == "path" or not key[1])):
      found += each
      continue
    group = ET.Element("g", {name: value for name, value in zip(("class", "clip-path"), key, strict=True) if value})
    style = styles.get(key[0] or "", "")
    for element in each:
      for name in group.attrib:
        del element.attrib[name]
      last = group[-1] if len(group) else element
      if "fill:none" in style and "opacity" not in style and element.tag == last.tag == "path" and element is not last:
        last.attrib["d"] += element.attrib["d"]
      else:
        group.append(element)
    found.append(group)
  if parent.tag != "defs":
    parent[:] = found
