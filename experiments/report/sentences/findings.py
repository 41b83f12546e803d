"""The findings of a comparison as sentences: winners are named where the difference is significant."""

from collections.abc import Sequence

from experiments.report import formats
from experiments.report.inference import undetected
from experiments.report.inference.paired_test import MOST
from experiments.report.inference.seed_sets import APART, apart
from experiments.report.reader import SCORES, Comparison
from experiments.report.sentences.headline import Cost, costs, headline
from experiments.report.sentences.wording import BEFORE, early, layout
from experiments.report.table_rows import EARLY, Row, pairs, ranking

Sentence = tuple[str, str]  # its subject ("" for none), and the text
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Soonest",
  "virtual_seconds": "Soonest in virtual time",
}  # fmt: skip


def finding(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Return the sentences, the result in plain words first; then the lowest costs of the target and the best metric."""
  ran = [row for row in table if row.finished or row.reached]
  if not ran:
    return [("", "No algorithm has a result.")]
  partial = [row for row in ran if 0 < row.reached < row.seeds]
  sentences: list[Sentence] = [("", headline(table, comparison))]
  if told := apart(comparison):
    sentences.append((APART, told))
  if len(ran) > 1 and all(row.seeds == 1 for row in ran):
    sentences.append(("One seed only", "no interval and no test of significance; another seed may give another order."))
  if told := early(comparison, table):
    sentences.append((f"{BEFORE} ({EARLY})", told))
  for cost in costs(table, comparison):
    sentences.append((_claimed(cost, comparison), _claim(table, cost.name, cost.ranked, cost.rivals)))
  word = "Highest" if comparison.higher_is_better else "Lowest"
  ranked, rivals, _ = ranking(table, comparison.metric)
  if len(ranked) > 1:
    claim = f"{word} {formats.NAMES[comparison.metric]} at the end"
    sentences.append((claim, _claim(table, comparison.metric, ranked, rivals)))
  sentences += [told] if (told := undetected.sentence(comparison, table)) else []
  if partial:
    some = [f"{formats.named(row.label)} ({row.reached} of {row.seeds})" for row in partial]
    sentences.append(("", f"Only some seeds met it with {formats.listed(some, labels=False)}: not ranked."))
  if nothing := [row for row in table if row not in ran]:
    sentences.append(("", f"There is no result for {_names(nothing)}."))
  return sentences


def _names(table: Sequence[Row]) -> str:
  return formats.listed([row.label for row in table])


def _figure(row: Row, name: str) -> str:
  return formats.figure(name, row.estimates[name].mean) + row.signs * (name not in SCORES)


def _claimed(cost: Cost, comparison: Comparison) -> str:
  """What the best of a cost is."""
  claim, where = f"{CLAIMS[cost.name]} to {comparison.goal}", layout(comparison)
  if not cost.all_send:
    claim += ", of those that send any"
  return f"{claim} as measured with {where}" if cost.name == "seconds" and where else claim


def _claim(table: Sequence[Row], name: str, ranked: list[Row], rivals: list[Row]) -> str:
  """The best and its difference from the next one; or those that do not differ significantly, without a winner."""
  best, *others = ranked
  if rivals:
    tied = [f"{row.label} ({_figure(row, name)})" for row in (best, *rivals)]
    behind = [row.label for row in others if row not in rivals]
    than = f"; significantly worse than some other: {formats.listed(behind, 5)}" if behind else ""
    more = pairs(table, name)[best.label, rivals[0].label].more_seeds
    wanted = f"; {undetected.more(more)} would separate the first two at this spread" if more and more <= MOST else ""
    return f"not significantly different are {formats.listed(tied, 5)}{than}{wanted}."
  found = f"{best.label} ({_figure(best, name)})"
  return f"{found}; {next_one(table, name, others[0], best)}." if others else f"{found}."


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
