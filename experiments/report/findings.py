"""The findings of a comparison as sentences: winners are named where the difference is significant."""

from collections.abc import Sequence

from experiments.report import formats
from experiments.report.reader import SCORES, Comparison
from experiments.report.table_rows import Row, difference, ranking
from experiments.report.wording import layout

Sentence = tuple[str, str]  # its subject ("" for none), and the text
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Soonest",
  "virtual_seconds": "Soonest in virtual time",
}  # fmt: skip


def finding(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Return the sentences: the lowest costs of the target, the best final metric, and the algorithms that met it."""
  goal = f"a {formats.NAMES[comparison.metric]} of {comparison.goal}"
  ran = [row for row in table if row.finished or row.reached]
  if not ran:
    return [("", "No algorithm has a result.")]
  complete = [row for row in ran if row.reached == row.seeds]
  partial = [row for row in ran if 0 < row.reached < row.seeds]
  never = [row for row in ran if not row.reached]
  all_seeds = " with every seed" if any(row.seeds > 1 for row in ran) else ""
  sentences: list[Sentence] = []
  if len(ran) > 1 and all(row.seeds == 1 for row in ran):
    sentences.append(("One seed only", "no interval and no test of significance; another seed may give another order."))
  if not complete:
    sentences.append(("", f"No algorithm reached {goal}{all_seeds}{', so none is ranked' if partial else ''}."))
  elif len(complete) > 1:
    sentences += _costs(complete, comparison)
  word = "Highest" if comparison.higher_is_better else "Lowest"
  ranked, rivals = ranking(ran, comparison.metric)
  if len(ranked) > 1:
    claim = f"{word} {formats.NAMES[comparison.metric]} at the end"
    sentences.append((claim, _claim(comparison.metric, ranked, rivals)))
  if complete:
    everyone = len(complete) == len(table) > 2
    reached = f"{f'All {len(table)} algorithms' if everyone else _names(complete)} reached {goal}{all_seeds}."
    sentences.append(("", reached + (_spent(complete[0], comparison.seconds) if len(complete) == 1 else "")))
  if partial:
    some = [f"{row.label} ({row.reached} of {row.seeds})" for row in partial]
    sentences.append(("", f"Only some seeds met it with {formats.listed(some)}: not ranked."))
  if never and (complete or partial):
    sentences.append(("", f"No seed met it with {_names(never)}."))
  if nothing := [row for row in table if row not in ran]:
    sentences.append(("", f"There is no result for {_names(nothing)}."))
  return sentences


def _names(table: Sequence[Row]) -> str:
  return formats.listed([row.label for row in table])


def _figure(row: Row, name: str) -> str:
  estimate = row.estimates[name]
  return formats.figure(name, estimate.mean, estimate.half)


def _spent(row: Row, seconds: str) -> str:
  examples, sent, time = (_figure(row, name) for name in ("examples", "bytes_sent", seconds))
  time += " of virtual time" if seconds == "virtual_seconds" else ""
  return f" It took {examples} examples, {sent} sent per worker and {time}."


def _costs(complete: Sequence[Row], comparison: Comparison) -> list[Sentence]:
  sentences, where = [], layout(comparison)
  for name in ("examples", "bytes_sent", comparison.seconds):
    claim, counted = f"{CLAIMS[name]} to {comparison.goal}", complete
    if name == "bytes_sent" and any(row.sends_nothing for row in complete):
      # Fewest bytes of all is no achievement of an algorithm that sends nothing.
      counted = [row for row in complete if not row.sends_nothing]
      claim += ", of those that send any"
    if name == "seconds" and where:
      claim += f" as measured with {where}"
    ranked, rivals = ranking(counted, name)
    if ranked:
      sentences.append((claim, _claim(name, ranked, rivals)))
  return sentences


def _claim(name: str, ranked: list[Row], rivals: list[Row]) -> str:
  """The best and its difference from the next one; or those that do not differ significantly, without a winner."""
  best, *others = ranked
  if rivals:
    tied = [f"{row.label} ({_figure(row, name)})" for row in (best, *rivals)]
    return f"not significantly different are {formats.listed(tied, 5)}."
  found = f"{best.label} ({_figure(best, name)})"
  return f"{found}; {next_one(name, others[0], best)}." if others else f"{found}."


def next_one(name: str, row: Row, best: Row) -> str:
  """Name the second of a ranking and its difference from the first."""
  return f"the next on average, {row.label}, {versus(name, row, best)}"


def versus(name: str, row: Row, best: Row) -> str:
  """Describe the tested difference of a row from the best one: "takes 1.30 times as many (...)"."""
  found = difference(name, row, best)
  values = found[:3]
  if found.ratio:
    mean, low, high = (f"{value:,.{formats.decimals(value, 3)}f}" for value in values)
    text = f"takes {mean} times as {'long' if name in ('seconds', 'virtual_seconds') else 'many'}"
  else:
    values = values if found.mean >= 0 else (-found.mean, -found.high, -found.low)
    mean, low, high = (formats.figure(name, value).replace(" %", " points") for value in values)
    text = f"is {mean} {'higher' if found.mean > 0 else 'lower'}" if name in SCORES else f"takes {mean} more"
  if row.seeds == 1:
    return f"{text} in the one seed"
  doubt = "" if found.sign else ": not significantly different"
  return f"{text} (95 % interval {low} to {high}, paired by seed{doubt})"


def expected(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Compare the pairs in info["expected"], (sooner, later) at the target, with the results."""
  pairs = comparison.info["expected"]
  if not pairs:
    return []
  rows = {row.label: row for row in table}
  found: dict[int, list[str]] = {-1: [], 1: [], 0: []}
  for sooner, later in pairs:
    found[order(rows.get(sooner), rows.get(later), comparison.seconds)].append(f"{sooner} before {later}")
  words = {-1: "", 1: "the other way round: ", 0: "not significantly different: "}
  texts = [words[sign] + formats.listed(each, 20) for sign, each in found.items() if each]
  single = " in the one seed, which shows no spread" if len(comparison.info["seeds"]) == 1 else ""
  seconds = formats.NAMES[comparison.seconds]
  return [
    (f"{len(found[-1])} of {len(pairs)} expected orderings in {seconds} came out{single}", "; ".join(texts) + ".")
  ]


def order(first: Row | None, second: Row | None, seconds: str) -> int:
  """Return -1 where the first is sooner, 1 where the second is; without any seed at the target it is the later one."""
  if first is None or second is None:
    return 0
  if first.of_all(seconds) and second.of_all(seconds):
    return difference(seconds, first, second).sign
  if first.of_all(seconds) and not second.reached:
    return -1
  return int(second.of_all(seconds) is not None and not first.reached)
