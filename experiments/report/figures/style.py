"""What all figures share: colours for light and dark pages, fonts, and file formats."""

import base64
import io
import re
from collections.abc import Callable
from typing import Any, NamedTuple

INK, MUTED, GRID, IDLE, PAPER = "#1b2129", "#5a6571", "#dfe3e8", "#b9c2cb", "#fffffe"
# Okabe and Ito's colours without yellow. There are more markers than colours, so that pairs of both rarely repeat.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
MARKERS = "os^DvP<X>ph*"
DARK = {  # the colours of a dark page; those that are missing are the same on both
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
  png: bytes  # the wide one in twice the resolution of a screen

  def embedded(self) -> "Picture":
    """The same with data URIs in place of the SVGs."""
    wide, narrow = (base64.b64encode(svg.encode()).decode() for svg in (self.wide, self.narrow))
    return self._replace(wide=f"data:image/svg+xml;base64,{wide}", narrow=f"data:image/svg+xml;base64,{narrow}")


def style(wide: bool) -> Any:
  """matplotlib's settings of every figure."""
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
  from matplotlib.layout_engine import ConstrainedLayoutEngine

  return Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))


def rendered(draw: Callable[[bool], Any], note: str = "") -> tuple[str, str, bytes]:
  """A figure as SVG for a screen, as SVG for a phone, and as PNG in twice the resolution of a screen.

  Args:
    draw: makes the figure, for a screen (True) or for a phone.
    note: below the figure of the PNG, which has no caption.
  """
  import matplotlib

  with matplotlib.rc_context(style(False)):
    narrow = _svg(draw(False))
  with matplotlib.rc_context(style(True)):
    figure, file = draw(True), io.BytesIO()
    wide = _svg(figure)
    if note:
      figure.supxlabel(note, x=0.01, ha="left", fontsize=9.5, color=MUTED)
    else:
      figure.set_layout_engine("none")  # the SVG's layout fits
    figure.savefig(file, format="png", dpi=200)
  return wide, narrow, file.getvalue()


def png(draw: Callable[[], Any]) -> bytes:
  """A figure as PNG in one and a half times the resolution of a screen."""
  import matplotlib

  with matplotlib.rc_context(style(True)):
    file = io.BytesIO()
    draw().savefig(file, format="png", dpi=150)
  return file.getvalue()


def _svg(figure: Any) -> str:
  """As SVG whose colours are variables that depend on the colour scheme of the page."""
  file = io.StringIO()
  figure.savefig(file, format="svg", metadata={"Date": None})
  svg, names = file.getvalue(), {colour: f"--c{number}" for number, colour in enumerate(DARK)}
  for colour, name in names.items():
    svg = svg.replace(colour, f"var({name})")
  light = "".join(f"{name}:{colour};" for colour, name in names.items())
  dark = "".join(f"{name}:{DARK[colour]};" for colour, name in names.items())
  style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
  return re.sub(r"(<svg[^>]*>)", rf"\1{style}", svg, count=1)
