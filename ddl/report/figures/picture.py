"""A picture of a report: laid out once per width, saved as SVG, PDF, PNG and as a CSV of what is drawn."""

import base64
import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ddl.names import slug
from ddl.report.figures.style import DARK, settings
from ddl.report.figures.svg import compact

FOLDER, FORMATS = "figures", ("svg", "pdf", "png", "csv")  # beside the page
DPI = 200  # of a PNG: twice a screen's
NOTEBOOK = 90  # of a picture that a notebook shows, so that its 9.6 inches fit beside a margin


@dataclass(frozen=True, repr=False)
class Picture:
  """A figure with its title, its text for those who do not see it, its caption and its data. Drawn when it is used."""

  name: str  # of its files, without the suffix
  title: str
  alt: str
  caption: list[str]  # sentences
  draw: Callable[[bool], Any]  # makes matplotlib's figure, for a screen (True) or for a phone: upright, legend below
  data: Mapping[str, Sequence[Any]]  # column: a value per drawn point
  column: Callable[[], Any] | None = None  # makes the figure of a paper's column; None: as for a phone

  def __post_init__(self) -> None:
    """Let a name with what a user named, such as a cluster's file, be that of a file."""
    object.__setattr__(self, "name", slug(self.name))

  def __repr__(self) -> str:
    return f"Picture {self.name}: {self.title}; save(path) writes {', '.join(f'.{each}' for each in FORMATS)}"

  @cached_property
  def figure(self) -> Any:
    """matplotlib's figure for a screen, laid out."""
    return _laid_out(self.draw, wide=True)

  @cached_property
  def _written(self) -> str:
    return _written(self.figure)

  @cached_property
  def svg(self) -> str:
    """For a screen, in the colours of a light page."""
    # A hundredth of a point is enough; the file is a fifth smaller.
    return re.sub(r' d="M[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), self._written)

  @property
  def wide(self) -> str:
    """For a screen: a data URI of an SVG whose colours follow the page's scheme."""
    return _embedded(compact(self._written))

  @property
  def narrow(self) -> str:
    """The same for a phone."""
    return _embedded(compact(_written(_laid_out(self.draw, wide=False))))

  def content(self, kind: str) -> bytes:
    """The content of a file. kind: one of FORMATS."""
    if kind == "svg":
      return self.svg.encode()
    if kind == "csv":
      text = io.StringIO()
      lines = csv.writer(text, lineterminator="\n")
      lines.writerow(self.data)
      lines.writerows(zip(*self.data.values(), strict=True))
      return text.getvalue().encode()
    return _bytes(self.figure, kind)

  def save(self, path: str | Path, title: bool = True, narrow: bool = False) -> Path:
    """Write it as the suffix says.

    Args:
      path: .svg, .pdf, .png or .csv, in a folder that is there.
      title: whether it has its title; a paper's caption stands for it.
      narrow: 4.3 inches wide, in a paper's column of 3.4 inches with letters of 8 points; of curves the large axes
        alone, with the bands that the small ones have.

    Raises:
      ValueError: for another suffix.
      FileNotFoundError: for a folder that is not there.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
      raise ValueError(f"{path.name}: a picture is saved as {', '.join(f'.{each}' for each in FORMATS)}")
    if not path.parent.is_dir():
      raise FileNotFoundError(f"{path.parent} is no folder; make it, or save {path.name} elsewhere")
    if kind == "csv" or (title and not narrow):
      path.write_bytes(self.content(kind))
      return path
    column = self.column
    figure = _laid_out((lambda _: column()) if narrow and column else self.draw, wide=not narrow)
    path.write_bytes(_bytes(figure, kind) if title else _untitled(figure, self.title, kind))
    return path

  def _repr_png_(self) -> bytes:
    """Of a notebook."""
    return _bytes(self.figure, "png", NOTEBOOK)


def png(draw: Callable[[], Any]) -> bytes:
  """A figure alone as PNG, in one and a half times the resolution of a screen."""
  import matplotlib

  with matplotlib.rc_context(settings(True)):
    file = io.BytesIO()
    draw().savefig(file, format="png", dpi=150)
  return file.getvalue()


def save_all(folder: Path, pictures: Iterable[Picture]) -> None:
  """Write every picture in all formats into the sub-folder figures/ of a page's folder."""
  for picture in pictures:
    (folder / FOLDER).mkdir(exist_ok=True)
    for kind in FORMATS:
      picture.save(folder / FOLDER / f"{picture.name}.{kind}")


def _laid_out(draw: Callable[[bool], Any], wide: bool) -> Any:
  import matplotlib

  with matplotlib.rc_context(settings(wide)):
    figure = draw(wide)
    if engine := figure.get_layout_engine():
      engine.execute(figure)
      figure.set_layout_engine("none")  # else each format would lay it out again
  return figure


def _save(figure: Any, file: Any, **how: Any) -> None:
  import matplotlib

  with matplotlib.rc_context(settings(True)):
    figure.savefig(file, **how)


def _bytes(figure: Any, kind: str, dpi: int = DPI, **how: Any) -> bytes:
  """As a file of this kind, the same bytes each time."""
  file = io.BytesIO()
  dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
  _save(figure, file, format=kind, dpi=dpi, metadata=dates.get(kind), **how)
  return file.getvalue()


def _untitled(figure: Any, title: str, kind: str) -> bytes:
  """A file of the figure without its title, cut to what is left."""
  from matplotlib.text import Text

  def is_title(artist: Any) -> bool:
    if not isinstance(artist, Text):
      return False
    text = " ".join(artist.get_text().split())
    return bool(text) and title.startswith(text) and artist.get_fontweight() == "bold"

  for found in figure.findobj(is_title):
    found.set_visible(False)
  return _bytes(figure, kind, bbox_inches="tight", pad_inches=0.03)


def _written(figure: Any) -> str:
  """As SVG."""
  file = io.StringIO()
  _save(figure, file, format="svg", metadata={"Date": None})
  return file.getvalue()


def _embedded(svg: str) -> str:
  """A data URI, with variables in place of the colours that depend on the colour scheme of the page."""
  names = {colour: f"--c{number}" for number, colour in enumerate(DARK) if colour in svg}
  for colour, name in names.items():
    svg = svg.replace(colour, f"var({name})")
  light = "".join(f"{name}:{colour};" for colour, name in names.items())
  dark = "".join(f"{name}:{DARK[colour]};" for colour, name in names.items())
  style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
  svg = re.sub(r"(<svg[^>]*>)", rf"\1{style}", svg, count=1)
  return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
