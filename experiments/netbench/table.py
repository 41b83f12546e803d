"""The bench's table as text."""

from ddl.perf.units import bytes_text, seconds_text
from experiments.netbench.measure import Row

COLUMNS = {
  "algorithm": 17, "batch": 7, "period, delay": 14, "bytes": 9, "alone": 9, "round": 9, "ratio": 7, "link": 9,
  "exposed": 9, "predicted": 10, "error": 8,
}  # fmt: skip
LEGEND = (
  "of a round of `period` steps on each host: bytes that a host sends, the round without communication (alone), the "
  "round, their ratio (median of pairs), the link's own time for the messages, what of it shows, the cost model"
)


def head() -> str:
  """The names of the columns."""
  return "".join(f"{name:<{width}}" if name == "algorithm" else f"{name:>{width}}" for name, width in COLUMNS.items())


def line(row: Row) -> str:
  """A row."""
  cells = (
    row.label, str(row.batch), f"{row.period}, {row.delay}", bytes_text(row.nbytes), seconds_text(row.alone),
    seconds_text(row.seconds), f"{row.ratio:.2f}", seconds_text(row.link), seconds_text(row.exposed),
    seconds_text(row.predicted), f"{100 * row.error:+.0f} %",
  )  # fmt: skip
  widths = list(COLUMNS.values())
  return f"{cells[0]:<{widths[0]}}" + "".join(
    f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True)
  )
