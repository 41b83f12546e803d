"""What all figures share: colours for light and dark pages, markers, dashes, fonts and sizes."""

from functools import cache
from typing import Any

INK, MUTED, GRID, IDLE, PAPER = "#1b2129", "#5a6571", "#dfe3e8", "#b9c2cb", "#fffffe"
# Okabe and Ito's colours without yellow. There are more markers than colours, so that pairs of both rarely repeat.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
MARKERS = "os^DvP<X>ph*"
DASHES = (  # on and off, in line widths
  (), (5.0, 2.0), (1.2, 1.6), (6.0, 1.8, 1.2, 1.8), (10.0, 2.5), (2.8, 1.4), (5.0, 1.5, 1.2, 1.5, 1.2, 1.5),
  (9.0, 1.6, 3.0, 1.6),
)  # fmt: skip
# matplotlib's plasma for values in their order: its part that is dark enough on white, and the one for dark pages.
SEQUENCE = (
  "#0d0887", "#260591", "#3a049a", "#4c02a1", "#5e01a6", "#6e00a8", "#7e03a8", "#8e0ca4", "#9d189d", "#aa2395",
  "#b6308b", "#c23c81", "#cc4977", "#d5546e", "#de6164", "#e76e5b",
)  # fmt: skip
DARK_SEQUENCE = (
  "#b6308c", "#c13b82", "#ca457a", "#d35171", "#da5b69", "#e26660", "#e97158", "#ef7e50", "#f48948", "#f9973f",
  "#fca537", "#fdb22f", "#fdc229", "#fcd025", "#f8e125", "#f3f027",
)  # fmt: skip
DARK = {  # the colours of a dark page; those that are missing are the same on both
  INK: "#e6eaef", MUTED: "#a3adb8", GRID: "#333c46", IDLE: "#59646f", PAPER: "#161b21",
  "#0072b2": "#4586f5", "#d55e00": "#f27b42", "#009e73": "#2fbd93", "#56b4e9": "#9adcff",
  **dict(zip(SEQUENCE, DARK_SEQUENCE, strict=True)),
}  # fmt: skip
SLIDE, PHONE = (9.6, 5.4), (4.3, 5.9)  # inches


@cache
def _family() -> list[str]:
  """The fonts that are present."""
  from matplotlib import font_manager

  present = set(font_manager.get_font_names())
  return [name for name in ("Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans") if name in present]


def settings(wide: bool) -> Any:
  """matplotlib's settings of every figure."""
  return {
    "font.family": _family(), "font.size": 11 if wide else 10, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": PAPER,
    "figure.facecolor": PAPER, "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "svg.fonttype": "path", "svg.hashsalt": "ddl", "axes.titlesize": 14 if wide else 12,
    "axes.titleweight": "bold", "text.parse_math": False, "xtick.minor.size": 2.5, "ytick.minor.size": 2.5,
    "pdf.fonttype": 42,  # embedded TrueType, which journals ask for
  }  # fmt: skip


def blank(size: tuple[float, float]) -> Any:
  """An empty figure, inches."""
  from matplotlib.figure import Figure
  from matplotlib.layout_engine import ConstrainedLayoutEngine

  return Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
