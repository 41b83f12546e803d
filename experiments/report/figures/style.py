"""What all figures share: colours for light and dark pages, markers, dashes, fonts and sizes."""

from functools import cache
from typing import Any

INK, MUTED, GRID, IDLE, PAPER = "#1b2129", "#5a6571", "#dfe3e8", "#b9c2cb", "#fffffe"
# Okabe and Ito's colours without yellow. There are more markers than colours, so that pairs of both rarely repeat.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
MARKERS = "os^DvP<X>ph*"
DASHES = ((), (5.0, 2.0), (1.2, 1.6), (6.0, 1.8, 1.2, 1.8), (10.0, 2.5))  # on and off, in line widths
DARK = {  # the colours of a dark page; those that are missing are the same on both
  INK: "#e6eaef", MUTED: "#a3adb8", GRID: "#333c46", IDLE: "#59646f", PAPER: "#161b21",
  "#0072b2": "#4586f5", "#d55e00": "#f27b42", "#009e73": "#2fbd93", "#56b4e9": "#9adcff",
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
