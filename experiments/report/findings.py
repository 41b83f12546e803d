"""The findings of a comparison as sentences: winners are named where the difference is significant."""

from collections.abc import Sequence

from experiments.report import formats
from experiments.report.reader import Comparison
from experiments.report.table_rows import FINAL, Row, difference, ranking
from experiments.report.wording import layout

Sentence = tuple[str, str]  # its subject ("" for none), and the text
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Soonest",
  "virtual_seconds": "Soonest in virtual time",
}  # fmt: skip


def finding(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Which algorithm has the lowest cost of the target, which the best end; and which met the target."""
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
    sentences.append(("One seed only", "no interval and no test of significance; another seed may give another order."))
  if not complete:
    ending = ", so none is ranked." if partial else "."
    sentences.append(("", f"No algorithm reached {goal}{_seeds(ran)}{ending}"))
  elif len(complete) > 1:
    sentences += _costs(complete, comparison, target)
  word = "Highest" if comparison.higher_is_better else "Lowest"
  ranked, rivals = ranking(ran, FINAL, comparison.higher_is_better)
  if len(ranked) > 1:
    claim = f"{word} {formats.NAMES[comparison.metric]} at the end"
    sentences.append((claim, _claim(FINAL, comparison.metric, ranked, rivals)))
  if complete:
    reached = f"{_who(complete, table)} reached {goal}{_seeds(ran)}."
    sentences.append(("", reached + (_alone(complete[0], comparison.seconds) if len(complete) == 1 else "")))
  if partial:
    some = [f"{row.label} ({row.reached} of {row.seeds})" for row in partial]
    sentences.append(("", f"Only some seeds met it with {formats.listed(some, 12)}: not ranked."))
  if never and (complete or partial):
    sentences.append(("", f"No seed met it with {_names(never)}."))
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
  found = [(name, row.estimates[name]) for name in ("examples", "bytes_sent", seconds)]
  examples, sent, time = (formats.figure(name, estimate.mean, estimate.half) for name, estimate in found)
  time += " of virtual time" if seconds == "virtual_seconds" else ""
  return f" It took {examples} examples, {sent} sent per worker and {time}."


def _costs(complete: Sequence[Row], comparison: Comparison, target: str) -> list[Sentence]:
  sentences, where = [], layout(comparison)
  silent = [row for row in complete if row.sends_nothing]
  for name in ("examples", "bytes_sent", comparison.seconds):
    claim = f"{CLAIMS[name]} to {target}"
    # Fewest bytes of all is no achievement of an algorithm that sends nothing.
    counted = [row for row in complete if name != "bytes_sent" or row not in silent]
    if name == "bytes_sent" and silent:
      claim += ", of those that send any"
    if name == "seconds" and where:
      claim += f" as measured with {where}"
    ranked, rivals = ranking(counted, name)
    if ranked:
      sentences.append((claim, _claim(name, name, ranked, rivals)))
  return sentences


def _claim(name: str, kind: str, ranked: list[Row], rivals: list[Row]) -> str:
  """The best, and by how much the next one differs; or those that do not differ significantly, without a winner."""

  def told(row: Row) -> str:
    found = row.estimates[name]
    return f"{row.label} ({formats.figure(kind, found.mean, found.half)})"

  if rivals:
    return f"not significantly different are {formats.listed([told(row) for row in (ranked[0], *rivals)], 5)}."
  if len(ranked) == 1:
    return f"{told(ranked[0])}."
  return f"{told(ranked[0])}; the next on average, {ranked[1].label}, {versus(name, kind, ranked[1], ranked[0])}."


def versus(name: str, kind: str, row: Row, best: Row) -> str:
  """By how much a row differs from another, as the test of significance sees it: "takes 1.30 times as many (...)"."""
  found = difference(name, row, best)
  values = found[:3]
  if found.ratio:
    mean, low, high = (f"{value:,.{formats.decimals(value, 3)}f}" for value in values)
    told = f"takes {mean} times as {'long' if kind in ('seconds', 'virtual_seconds') else 'many'}"
  else:
    values = values if found.mean >= 0 else (-found.mean, -found.high, -found.low)
    mean, low, high = (formats.figure(kind, value).replace(" %", " points") for value in values)
    told = f"is {mean} {'higher' if found.mean > 0 else 'lower'}" if name == FINAL else f"takes {mean} more"
  if row.seeds == 1:
    return f"{told} in the one seed"
  doubt = "" if found.sign else ": not significantly different"
  return f"{told} (95 % interval {low} to {high}, paired by seed{doubt})"


def expected(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Of the pairs in info["expected"], (sooner, later) at the target: which came out, which did not."""
  pairs = comparison.info["expected"]
  if not pairs:
    return []
  rows, words = {row.label: row for row in table}, ("", "not significantly different: ", "the other way round: ")
  found: dict[int, list[str]] = {-1: [], 0: [], 1: []}
  for sooner, later in pairs:
    found[order(rows.get(sooner), rows.get(later), comparison.seconds)].append(f"{sooner} before {later}")
  told = [words[sign + 1] + formats.listed(found[sign], 20) for sign in (-1, 1, 0) if found[sign]]
  single = " in the one seed, which shows no spread" if len(comparison.info["seeds"]) == 1 else ""
  seconds = formats.NAMES[comparison.seconds]
  return [(f"{len(found[-1])} of {len(pairs)} expected orderings in {seconds} came out{single}", "; ".join(told) + ".")]


def order(first: Row | None, second: Row | None, seconds: str) -> int:
  """-1 where the first is sooner, 1 where the second is; no seed at the target is later than every seed."""
  if first is None or second is None:
    return 0
  if first.of_all(seconds) and second.of_all(seconds):
    return difference(seconds, first, second).sign
  if first.of_all(seconds) and not second.reached:
    return -1
  return int(second.of_all(seconds) is not None and not first.reached)
