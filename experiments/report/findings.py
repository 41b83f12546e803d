"""The findings of a comparison as sentences: winners are named where the difference is significant."""

from collections.abc import Sequence

from experiments.report import formats
from experiments.report.paired_test import MOST
from experiments.report.reader import SCORES, Comparison
from experiments.report.table_rows import Row, pairs, ranking
from experiments.report.wording import layout

Sentence = tuple[str, str]  # its subject ("" for none), and the text
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Soonest",
  "virtual_seconds": "Soonest in virtual time",
}  # fmt: skip
LEAST = {"examples": "examples", "bytes_sent": "bytes", "seconds": "measured time", "virtual_seconds": "virtual time"}
FEW = 3  # algorithms that the first sentence names


def finding(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Return the sentences, the result in plain words first; then the lowest costs of the target and the best metric."""
  ran = [row for row in table if row.finished or row.reached]
  if not ran:
    return [("", "No algorithm has a result.")]
  complete = [row for row in ran if row.reached == row.seeds]
  partial = [row for row in ran if 0 < row.reached < row.seeds]
  sentences: list[Sentence] = [("", _headline(table, complete, comparison))]
  if len(ran) > 1 and all(row.seeds == 1 for row in ran):
    sentences.append(("One seed only", "no interval and no test of significance; another seed may give another order."))
  for name, claim, ranked, rivals in _costs(table, complete, comparison):
    sentences.append((claim, _claim(table, name, ranked, rivals)))
  word = "Highest" if comparison.higher_is_better else "Lowest"
  ranked, rivals = ranking(table, comparison.metric)
  if len(ranked) > 1:
    claim = f"{word} {formats.NAMES[comparison.metric]} at the end"
    sentences.append((claim, _claim(table, comparison.metric, ranked, rivals)))
  if partial:
    some = [f"{row.label} ({row.reached} of {row.seeds})" for row in partial]
    sentences.append(("", f"Only some seeds met it with {formats.listed(some)}: not ranked."))
  if nothing := [row for row in table if row not in ran]:
    sentences.append(("", f"There is no result for {_names(nothing)}."))
  return sentences


def _names(table: Sequence[Row]) -> str:
  return formats.listed([row.label for row in table])


def _headline(table: Sequence[Row], complete: Sequence[Row], comparison: Comparison) -> str:
  """Which algorithms reached the target, and which of them was cheapest in examples, bytes and time."""
  seeds = "every seed" if any(row.seeds > 1 for row in table) else "the one seed"
  goal = f"{comparison.goal} {formats.NAMES[comparison.metric]}"
  if not complete:
    return f"No algorithm reached {goal} with {seeds}."
  never = [row for row in table if row.finished and not row.reached]
  some = _names(complete) if len(complete) <= FEW else f"{len(complete)} of {len(table)} algorithms"
  reached = f"All {len(table)} algorithms" if len(complete) == len(table) > FEW else some
  text = f"{reached} reached {goal} with {seeds}" + (f", {_names(never)} with none" if never else "")
  if len(complete) == 1:
    return f"{text}.{_spent(complete[0], comparison.seconds)}"
  won: dict[str, list[str]] = {}
  for name, _, ranked, rivals in _costs(table, complete, comparison):
    won.setdefault("" if rivals else ranked[0].label, []).append(LEAST[name])
  level = won.pop("", [])
  found = [f"{label} was best in {formats.listed(what)}" for label, what in won.items()]
  found += [f"no winner is clear in {formats.listed(level)}"] if level else []
  return f"{text}; of those that did, {formats.listed(found)}."


def _figure(row: Row, name: str) -> str:
  return formats.figure(name, row.estimates[name].mean)


def _spent(row: Row, seconds: str) -> str:
  examples, sent, time = (_figure(row, name) for name in ("examples", "bytes_sent", seconds))
  time += " of virtual time" if seconds == "virtual_seconds" else ""
  return f" It took {examples} examples, {sent} sent per worker and {time}."


def _costs(
  table: Sequence[Row], complete: Sequence[Row], comparison: Comparison
) -> list[tuple[str, str, list[Row], list[Row]]]:
  """Of each cost its name, the claim about it, and the `ranking`; [] with fewer than two algorithms."""
  found, where = [], layout(comparison)
  for name in ("examples", "bytes_sent", comparison.seconds):
    claim, counted = f"{CLAIMS[name]} to {comparison.goal}", complete
    if name == "bytes_sent" and any(row.sends_nothing for row in complete):
      # Fewest bytes of all is no achievement of an algorithm that sends nothing.
      counted = [row for row in complete if not row.sends_nothing]
      claim += ", of those that send any"
    if name == "seconds" and where:
      claim += f" as measured with {where}"
    ranked, rivals = ranking(table, name, counted)
    if ranked and len(complete) > 1:
      found.append((name, claim, ranked, rivals))
  return found


def _claim(table: Sequence[Row], name: str, ranked: list[Row], rivals: list[Row]) -> str:
  """The best and its difference from the next one; or those that do not differ significantly, without a winner."""
  best, *others = ranked
  if rivals:
    tied = [f"{row.label} ({_figure(row, name)})" for row in (best, *rivals)]
    behind = [row.label for row in others if row not in rivals]
    than = f"; significantly worse than some other: {formats.listed(behind, 5)}" if behind else ""
    more = pairs(table, name)[best.label, rivals[0].label].more_seeds
    wanted = f"; {_seeds(more)} would separate the first two at this spread" if more and more <= MOST else ""
    return f"not significantly different are {formats.listed(tied, 5)}{than}{wanted}."
  found = f"{best.label} ({_figure(best, name)})"
  return f"{found}; {next_one(table, name, others[0], best)}." if others else f"{found}."


def _seeds(count: int) -> str:
  return f"{count:,} more seed{'s' * (count > 1)}"


def next_one(table: Sequence[Row], name: str, row: Row, best: Row) -> str:
  """Name the second of a ranking and its difference from the first."""
  return f"the next on average, {row.label}, {versus(table, name, row, best)}"


def versus(table: Sequence[Row], name: str, row: Row, best: Row) -> str:
  """Describe the tested difference of a row from the best one: "takes 1.30 times as many (...)"."""
  if (found := pairs(table, name).get((row.label, best.label))) is None:
    return "is not tested against it"
  values = (found.mean, *(found.interval or ()))
  if found.ratio:
    mean, *ends = (f"{value:,.{formats.decimals(value, 3)}f}" for value in values)
    text = f"takes {mean} times as {'long' if name in ('seconds', 'virtual_seconds') else 'many'}"
  else:
    values = values if found.mean >= 0 else (-values[0], *(-end for end in reversed(values[1:])))
    mean, *ends = (formats.figure(name, value).replace(" %", " points") for value in values)
    text = f"is {mean} {'higher' if found.mean > 0 else 'lower'}" if name in SCORES else f"takes {mean} more"
  if not ends:
    return f"{text} in the one seed"
  doubt = "" if found.sign else ": not significantly different"
  kind = "geometric mean over seeds; " if found.ratio else ""
  return f"{text} ({kind}95 % interval {ends[0]} to {ends[1]}, paired by seed{doubt})"


def expected(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Compare the pairs in info["expected"], (sooner, later) at the target, with the results."""
  pairs = comparison.info["expected"]
  if not pairs:
    return []
  found: dict[int, list[str]] = {-1: [], 1: [], 0: []}
  for sooner, later in pairs:
    found[order(table, sooner, later, comparison.seconds)].append(f"{sooner} before {later}")
  words = {-1: "", 1: "the other way round: ", 0: "not significantly different: "}
  texts = [words[sign] + formats.listed(each, 20) for sign, each in found.items() if each]
  single = " in the one seed, which shows no spread" if len(comparison.info["seeds"]) == 1 else ""
  seconds = formats.NAMES[comparison.seconds]
  return [
    (f"{len(found[-1])} of {len(pairs)} expected orderings in {seconds} came out{single}", "; ".join(texts) + ".")
  ]


def order(table: Sequence[Row], first: str, second: str, seconds: str) -> int:
  """Return -1 where the first is sooner, 1 where the second is; without any seed at the target it is the later one."""
  rows = {row.label: row for row in table}
  if first not in rows or second not in rows:
    return 0
  one, other = rows[first], rows[second]
  if one.of_all(seconds) and other.of_all(seconds):
    return pairs(table, seconds)[first, second].sign
  if one.of_all(seconds) and not other.reached:
    return -1
  return int(other.of_all(seconds) is not None and not one.reached)
