"""What a comparison found, in sentences that claim no more than its seeds show."""

from collections.abc import Callable, Sequence

from experiments.report import formats
from experiments.report.comparison import Comparison
from experiments.report.statistics import paired
from experiments.report.table_rows import Estimate, Row, cost, final, ranking
from experiments.report.wording import layout

Sentence = tuple[str, str]  # what it is about ("" for none), and what it says
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Soonest",
  "virtual_seconds": "Soonest in virtual time",
}  # fmt: skip


def finding(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Who met the target with the fewest examples and bytes and soonest, who ends best, who met it and who did not."""
  target = formats.target(comparison.metric, comparison.target)
  goal = f"a {formats.NAMES[comparison.metric]} of {target}"
  ran = [row for row in table if row.finished or row.reached]
  if not ran:
    return [("", "No algorithm has a result.")]
  complete = [row for row in ran if row.reached == row.seeds]
  partial = [row for row in ran if 0 < row.reached < row.seeds]
  never = [row for row in ran if not row.reached]
  sentences: list[Sentence] = []
  if len(ran) > 1 and all(row.seeds == 1 for row in ran):
    sentences.append(("One seed only", "no interval and no spread; another seed may well give another order."))
  if not complete:
    ending = ", so none is ranked." if partial else "."
    sentences.append(("", f"No algorithm reached {goal}{_seeds(ran)}{ending}"))
  elif len(complete) > 1:
    sentences += _costs(complete, comparison, target)
  word = "Highest" if comparison.higher_is_better else "Lowest"
  ranked, rivals = ranking(ran, final, comparison.higher_is_better)
  if len(ranked) > 1:
    claim = f"{word} {formats.NAMES[comparison.metric]} at the end"
    sentences.append((claim, _claim(comparison.metric, ranked, rivals, final)))
  if complete:
    reached = f"{_who(complete, table)} reached {goal}{_seeds(ran)}."
    sentences.append(("", reached + (_alone(complete[0], comparison.seconds) if len(complete) == 1 else "")))
  if partial:
    told = [f"{row.label} ({row.reached} of {row.seeds})" for row in partial]
    sentences.append(("", f"Only some seeds got there with {formats.listed(told, 12)}: not ranked."))
  if never and (complete or partial):
    sentences.append(("", f"{_names(never)} never did."))
  nothing = [row for row in table if row not in ran]
  if nothing:
    sentences.append(("", f"There is no result for {_names(nothing)}."))
  return sentences


def _names(table: Sequence[Row]) -> str:
  return formats.listed([row.label for row in table], 12)


def _who(rows: Sequence[Row], table: Sequence[Row]) -> str:
  return f"All {len(rows)} algorithms" if len(rows) == len(table) > 2 else _names(rows)


def _seeds(table: Sequence[Row]) -> str:
  return " with every seed" if any(row.seeds > 1 for row in table) else ""


def _alone(row: Row, seconds: str) -> str:
  names = ("examples", "bytes_sent", seconds)
  examples, sent, time = (formats.figure(name, row.costs[name].mean, row.costs[name].half) for name in names)
  time += " of virtual time" if seconds == "virtual_seconds" else ""
  return f" It took {examples} examples, {sent} sent per worker and {time}."


def _costs(complete: Sequence[Row], comparison: Comparison, target: str) -> list[Sentence]:
  sentences, where = [], layout(comparison)
  silent = [row for row in complete if row.sends_nothing]
  for name in ("examples", "bytes_sent", comparison.seconds):
    claim = f"{CLAIMS[name]} to {target}"
    # Who sends nothing wins on bytes without contest, which says nothing of the others.
    counted = [row for row in complete if name != "bytes_sent" or row not in silent]
    if name == "bytes_sent" and silent:
      claim += ", of those that send any"
    if name == "seconds" and where:
      claim += f" as measured with {where}"
    ranked, rivals = ranking(counted, cost(name))
    if ranked:
      sentences.append((claim, _claim(name, ranked, rivals, cost(name))))
  return sentences


def _claim(name: str, ranked: list[Row], rivals: list[Row], estimate: Callable[[Row], Estimate | None]) -> str:
  """The best, and how far off the next one is; or those that are not told apart, without a lead."""

  def told(row: Row) -> str:
    found = estimate(row)
    return f"{row.label} ({formats.figure(name, found.mean, found.half)})" if found else row.label

  if rivals:
    return f"not told apart are {formats.listed([told(row) for row in (ranked[0], *rivals)], 5)}."
  best, second = estimate(ranked[0]), estimate(ranked[1]) if len(ranked) > 1 else None
  if best is None or second is None:
    return f"{told(ranked[0])}."
  apart = paired(second.seeds, best.seeds)
  gap, how = formats.difference(name, apart.mean, apart.half), "" if apart.half is None else " (paired by seed)"
  words = ("is", "higher" if apart.mean > 0 else "lower") if estimate is final else ("takes", "more")
  return f"{told(ranked[0])}; the next on average, {ranked[1].label}, {words[0]} {gap} {words[1]}{how}."
