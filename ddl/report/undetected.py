"""What a comparison could not have found: the differences that so few seeds, tested in so many pairs, leave unseen."""

from collections.abc import Iterable, Mapping, Sequence

from ddl.report import formats
from ddl.report.paired_test import LEVEL, MOST, Pair, detectable
from ddl.report.reader import Comparison
from ddl.report.table import LabelRow, pairs, spent

SMALL = 3.0  # standard deviations of the paired differences that a test with enough seeds detects


def sentence(comparison: Comparison, table: Sequence[LabelRow]) -> tuple[str, str] | None:
  """The difference that would have been found, and which pair needs the fewest seeds more; None where all is well."""
  seeds = min((row.seeds for row in table), default=0)
  families = {name: pairs(table, name) for name in (comparison.metric, *spent(comparison)[1:])}
  tested = {name: _tested(found.values()) // 2 for name, found in families.items()}
  alike = [pair for found in families.values() for pair in found.values() if pair.p is not None and not pair.sign]
  most = max(tested.values(), default=0)
  if seeds < 2 or not alike or (size := detectable(seeds, LEVEL / most)) < SMALL:
    return None
  text = (
    f"with {most} pair{'s' * (most > 1)} to test (Holm's correction), a difference is found with a probability of 80 % "
    f"if it is {float(f'{size:.2g}'):,.10g} times the standard deviation of the paired differences or more. A pair "
    "that is not significantly different may differ by less than that"
  )
  return f"What {seeds} seeds can show", f"{text}{nearest(families)}."


def _tested(found: Iterable[Pair]) -> int:
  return sum(pair.p is not None for pair in found)


def nearest(families: Mapping[str, Mapping[tuple[str, str], Pair]]) -> str:
  """ "; n more seeds would separate ...", of the pair that takes the fewest; "" where none is known to be separable."""
  found = [
    (pair.more_seeds, labels, name)
    for name, family in families.items()
    for labels, pair in family.items()
    if pair.more_seeds and pair.more_seeds <= MOST
  ]
  if not found:
    return ""
  count, labels, name = min(found, key=lambda each: each[0])
  return f"; {more(count)} would separate {formats.listed(labels)} in {formats.NAMES[name]} at this spread"


def more(count: int) -> str:
  """3 more seeds."""
  return f"{count:,} more seed{'s' * (count > 1)}"
