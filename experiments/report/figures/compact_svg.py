"""A smaller SVG of the same picture, for pages, which hold each figure twice: for a screen and for a phone.

matplotlib writes every line out in full, with its style, also the grey ones that all small axes share, and what lies
outside the axes. Here a shape that occurs several times is defined once, coordinates are relative, in tenths of a
point, and styles are classes.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from itertools import count, groupby
from typing import Any
from xml.etree import ElementTree as ET

from experiments.report.figures.svg_path import Box, moved, number, parse, seen, written

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
