"""Which of the orderings that a paper reports came out, in one sentence."""

from collections.abc import Sequence

from experiments import report_format
from experiments.report_data import Comparison
from experiments.report_rows import Row


def expected(comparison: Comparison, table: Sequence[Row]) -> list[tuple[str, str]]:
  """Of the pairs in info["expected"], (sooner, later) at the target: those that came out, did not, or can't be told.

  A pair came out if the first one's mean is less and their intervals do not overlap (with one seed: if it is less).
  """
  pairs = comparison.info.get("expected") or []
  if not pairs:
    return []
  rows = {row.label: row for row in table}
  found: dict[str, list[str]] = {"came out": [], "came out the other way round": [], "can't be told apart": []}
  for sooner, later in pairs:
    found[_verdict(rows.get(sooner), rows.get(later), comparison.seconds)].append(f"{sooner} before {later}")
  told = [f"{report_format.listed(names, 20)} {verdict}" for verdict, names in found.items() if names]
  seconds = report_format.NAMES[comparison.seconds]
  subject = f"{len(found['came out'])} of {len(pairs)} expected orderings in {seconds} came out"
  return [(subject, "; ".join(told) + ".")]


def _verdict(first: Row | None, second: Row | None, seconds: str) -> str:
  """Never having got to the target is later than having got there with every seed."""
  unclear = "can't be told apart"
  if first is None or second is None:
    return unclear
  there, other = first.reached == first.seeds > 0, second.reached == second.seeds > 0
  if not (there and other):
    if there and not second.reached:
      return "came out"
    return "came out the other way round" if other and not first.reached else unclear
  a, b = first.costs[seconds], second.costs[seconds]
  if a.high < b.low:
    return "came out"
  return "came out the other way round" if b.high < a.low else unclear
