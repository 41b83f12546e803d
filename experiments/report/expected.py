"""Which of the orderings that a paper reports came out, in one sentence."""

from collections.abc import Sequence

from experiments.report import formats
from experiments.report.comparison import Comparison
from experiments.report.statistics import paired
from experiments.report.table_rows import Row

SOONER, LATER, UNTOLD = "", "the other way round: ", "not told apart: "


def expected(comparison: Comparison, table: Sequence[Row]) -> list[tuple[str, str]]:
  """Of the pairs in info["expected"], (sooner, later) at the target: those that came out, did not, or can't be told.

  A pair is judged by its differences over the seeds (`statistics.paired`); with one seed by that seed, which is said.
  """
  pairs = comparison.info.get("expected") or []
  if not pairs:
    return []
  rows = {row.label: row for row in table}
  found: dict[str, list[str]] = {SOONER: [], LATER: [], UNTOLD: []}
  for sooner, later in pairs:
    found[_verdict(rows.get(sooner), rows.get(later), comparison.seconds)].append(f"{sooner} before {later}")
  told = [verdict + formats.listed(names, 20) for verdict, names in found.items() if names]
  single = " in the one seed, which shows no spread" if len(comparison.info["seeds"]) == 1 else ""
  seconds = formats.NAMES[comparison.seconds]
  subject = f"{len(found[SOONER])} of {len(pairs)} expected orderings in {seconds} came out{single}"
  return [(subject, "; ".join(told) + ".")]


def _verdict(first: Row | None, second: Row | None, seconds: str) -> str:
  """Never having got to the target is later than having got there with every seed."""
  if first is None or second is None:
    return UNTOLD
  there, other = first.reached == first.seeds > 0, second.reached == second.seeds > 0
  if there and other:
    return {-1: SOONER, 0: UNTOLD, 1: LATER}[
      paired(first.costs[seconds].seeds, second.costs[seconds].seeds, ratio=True).sign
    ]
  if there and not second.reached:
    return SOONER
  return LATER if other and not first.reached else UNTOLD
