"""What all pictures share: colours that follow the page into the dark, fonts, and the formats they are kept in."""

import base64
import io
import re
from typing import Any, NamedTuple

INK, MUTED, GRID, IDLE, PAPER = "#1b2129", "#5a6571", "#dfe3e8", "#b9c2cb", "#fffffe"
# Okabe and Ito's colours without yellow. Markers go round at another pace: no pair is told apart by colour alone.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
MARKERS = "os^DvP<X>ph*"
DARK = {  # what a dark page shows in place of each; the other colours serve both
  INK: "#e6eaef", MUTED: "#a3adb8", GRID: "#333c46", IDLE: "#59646f", PAPER: "#161b21",
  "#0072b2": "#4586f5", "#d55e00": "#f27b42", "#009e73": "#2fbd93", "#56b4e9": "#9adcff",
}  # fmt: skip
SLIDE, PHONE = (9.6, 5.4), (4.3, 5.9)  # inches


class Picture(NamedTuple):
  name: str  # of the PNG, without the suffix
  title: str
  alt: str
  caption: list[str]  # sentences
  wide: str  # SVG
  narrow: str  # SVG for a phone: upright, with the legend below
  png: bytes  # the wide one at twice the size of a screen

  def embedded(self) -> "Picture":
    """The same with data URIs in place of the SVGs."""
    wide, narrow = (base64.b64encode(svg.encode()).decode() for svg in (self.wide, self.narrow))
    return self._replace(wide=f"data:image/svg+xml;base64,{wide}", narrow=f"data:image/svg+xml;base64,{narrow}")


def style(wide: bool) -> dict[str, Any]:
  """The look of every picture, as matplotlib's settings."""
  from matplotlib import font_manager

  present = set(font_manager.get_font_names())
  family = [name for name in ("Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans") if name in present]
  return {
    "font.family": family, "font.size": 11 if wide else 10, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": PAPER,
    "figure.facecolor": PAPER, "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "svg.fonttype": "path", "svg.hashsalt": "ddl", "axes.titlesize": 14 if wide else 12,
    "axes.titleweight": "bold", "text.parse_math": False, "xtick.minor.size": 2.5, "ytick.minor.size": 2.5,
  }  # fmt: skip


def blank(size: tuple[float, float]) -> Any:
  """An empty figure, inches."""
  from matplotlib.figure import Figure

  picture = Figure(figsize=size, layout="constrained")
  layout: Any = picture.get_layout_engine()
  layout.set(w_pad=0.12, h_pad=0.1)
  return picture


def svg(picture: Any) -> str:
  """A figure as SVG whose colours follow the page into the dark."""
  file = io.StringIO()
  picture.savefig(file, format="svg", metadata={"Date": None})
  return _adaptive(file.getvalue())


def png(picture: Any) -> bytes:
  """A figure at twice the size of a screen."""
  file = io.BytesIO()
  picture.savefig(file, format="png", dpi=200)
  return file.getvalue()


def _adaptive(svg: str) -> str:
  """The SVG with its colours as variables that follow the page into the dark."""
  names = {colour: f"--c{number}" for number, colour in enumerate(DARK)}
  light = "".join(f"{name}:{colour};" for colour, name in names.items())
  dark = "".join(f"{name}:{DARK[colour]};" for colour, name in names.items())
  for colour, name in names.items():
    svg = svg.replace(colour, f"var({name})")
  style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
  return re.sub(r"(<svg[^>]*>)", lambda found: found.group(1) + style, svg, count=1)
