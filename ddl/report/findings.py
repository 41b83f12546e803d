"""The findings of a comparison as sentences: winners are named where the difference is significant."""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.perf.units import counted
from ddl.report import formats, undetected
from ddl.report.paired_test import MOST
from ddl.report.reader import SCORES, Comparison
from ddl.report.seeds import APART, apart
from ddl.report.table import EARLY, LabelRow, pairs, ranking
from ddl.report.wording import BEFORE, early, layout

FEW, WORDS = 3, 40  # labels that a clause names, and about the words of the sentence
BEST = {
  "examples": "with the fewest examples", "bytes_sent": "with the fewest bytes", "seconds": "soonest",
  "virtual_seconds": "soonest in virtual time",
}  # fmt: skip
UNRANKED = "No seed is common to all labels, so that nothing is ranked."
SPENT = {"examples": "examples", "bytes_sent": "bytes", "seconds": "measured time", "virtual_seconds": "virtual time"}


class Cost(NamedTuple):
  """The algorithms that reach the target with every seed, ranked by one of its costs."""

  name: str  # a metrics column
  ranked: list[LabelRow]
  rivals: list[LabelRow]  # of the first one: no row is significantly better than they
  unjudged: list[LabelRow]  # that no test compares with the best, as of a grid not each is tested with each
  all_send: bool  # else those that send nothing are not ranked by bytes

  @property
  def best(self) -> list[LabelRow]:
    """The first and its rivals."""
    return [self.ranked[0], *self.rivals]


def costs(table: Sequence[LabelRow], comparison: Comparison) -> list[Cost]:
  """Of examples, bytes and time; [] with fewer than two algorithms that reach the target."""
  complete = [row for row in table if row.reached == row.seeds]
  found = []
  for name in ("examples", "bytes_sent", comparison.seconds):
    ranked, rivals, unjudged = ranking(table, name, complete)
    if len(ranked) > 1:  # one alone is no best
      all_send = name != "bytes_sent" or not any(row.sends_nothing for row in complete)
      found.append(Cost(name, ranked, rivals, unjudged, all_send))
  return found


def headline(table: Sequence[LabelRow], comparison: Comparison) -> str:
  """The sentence; an algorithm is the best of a cost where the difference is significant, or one of those tied."""
  single = all(row.seeds == 1 for row in table)
  goal = f"{comparison.goal} {formats.NAMES[comparison.metric]}"
  every = "" if single else " with every seed"
  complete = [row for row in table if row.reached == row.seeds]
  if not all(row.paired for row in table):
    return UNRANKED
  if not complete:
    text = f"no algorithm reaches {goal}{every}"
  elif len(complete) == 1:
    only = f"only {complete[0].label}" if len(table) > 1 else complete[0].label
    text = f"{only} reaches {goal}{every}, after {_spent(complete[0], comparison.seconds)}"
    text = "; ".join([text, *early_clause(complete, len(table))])
  else:
    text, found, baseline = "", costs(table, comparison), _baseline(complete, comparison)
    for details in (len(found), 1, 0):
      text = "; ".join(_clauses(table, complete, found, baseline, goal, every, details))
      if len(text.split()) <= WORDS - 3 * single:
        break
  if single:
    return f"With one seed, {text}."
  return f"{text[0].upper() if text.split()[0] in ('no', 'only', 'all') else text[0]}{text[1:]}."


def _clauses(
  table: Sequence[LabelRow], complete: Sequence[LabelRow], found: Sequence[Cost], baseline: LabelRow | None,
  goal: str, every: str, details: int,
) -> list[str]:  # fmt: skip
  """The parts of the sentence; details: how many of its claims have their figures."""
  won, level = winners(table, found)
  clauses, claimed = [], 0
  for labels, best in won:
    claims = []
    for cost in best:
      figures = f" ({_figures(table, cost, baseline)})" if details > claimed else ""
      sending = "" if cost.all_send else " of those that send any"
      claims.append(f"{BEST[cost.name]}{sending}{figures}")
      claimed += 1
    verb = f"reach{'es' * (len(labels) == 1)} {goal} " * (not clauses)
    clauses.append(f"{_named(labels, len(table))} {verb}{formats.listed(claims, labels=False)}")
  if level:
    unclear = f"no winner is clear in {formats.listed(level)}"
    clauses.append(unclear if clauses else f"{_reaching(complete, table)} reach {goal}{every}, and {unclear}")
  if never := [row.label for row in table if row.finished and not row.reached]:
    clauses.append(f"{_named(never, len(table))} never do{'es' * (len(never) == 1)}")
  return clauses + early_clause([row for cost in found for row in cost.best], len(table))


def early_clause(best: Sequence[LabelRow], count: int) -> list[str]:
  """One clause on those of the best whose costs are no measurement, or none."""
  labels = list(dict.fromkeys(row.label for row in best if row.early))
  return [f"{_named(labels, count)} did before the first evaluation, so that the order is a guess"] if labels else []


def winners(table: Sequence[LabelRow], found: Sequence[Cost]) -> tuple[list[tuple[list[str], list[Cost]]], list[str]]:
  """The rule of every first sentence: whom it names as the best, and where it names nobody.

  Returns:
    labels with the costs that no row is significantly better in, at most FEW together; the costs, in words, that have
    more of such rows, or that do not tell any two rows apart.
  """
  won: dict[tuple[str, ...], list[Cost]] = {}
  level = []
  for cost in found:
    tied, judged = len(cost.best), len(cost.ranked) - len(cost.unjudged)
    if tied == judged or tied > FEW:
      level.append(SPENT[cost.name] + f" ({tied} are level)" * (tied < judged))
    else:
      won.setdefault(tuple(row.label for row in table if row in cost.best), []).append(cost)
  return [(list(labels), costs) for labels, costs in won.items()], level


def _named(labels: Sequence[str], count: int) -> str:
  return formats.listed(labels) if len(labels) <= FEW else f"{len(labels)} of {counted(count, 'algorithm')}"


def _reaching(complete: Sequence[LabelRow], table: Sequence[LabelRow]) -> str:
  if len(complete) == len(table) > FEW:
    return f"all {len(table)} algorithms"
  return _named([row.label for row in complete], len(table))


def _baseline(complete: Sequence[LabelRow], comparison: Comparison) -> LabelRow | None:
  """The one synchronous SGD, which everybody knows; None where there is none or several."""
  names = {result.info["label"]: result.info["name"] for result in comparison.results}
  found = [row for row in complete if names[row.label] == "sync_sgd"]
  return found[0] if len(found) == 1 else None


def _figures(table: Sequence[LabelRow], cost: Cost, baseline: LabelRow | None) -> str:
  """About how much, and how much less than the baseline where that is significant for each of the best."""
  means = [row.estimates[cost.name].mean for row in cost.best]
  ends = dict.fromkeys(formats.figure(cost.name, float(f"{mean:.3g}")) for mean in (min(means), max(means)))
  about = f"about {' to '.join(ends)}"
  if baseline is None or baseline in cost.best or not baseline.of_all(cost.name):
    return about
  found = [pairs(table, cost.name)[row.label, baseline.label] for row in cost.best]
  if any(pair.sign >= 0 for pair in found):
    return about
  ratios = [pair.mean for pair in found]
  if max(ratios) > 0.5:
    shares = dict.fromkeys(f"{100 * (1 - ratio):.0f}" for ratio in (max(ratios), min(ratios)))
    less = "fewer" if cost.name in ("examples", "bytes_sent") else "less"
    return f"{about}, {' to '.join(shares)} % {less} than {baseline.label}"
  shares = dict.fromkeys(f"{100 * ratio:.2g}" for ratio in (min(ratios), max(ratios)))
  return f"{about}, {' to '.join(shares)} % of {baseline.label}'s"


def _spent(row: LabelRow, seconds: str) -> str:
  examples, sent, time = (
    formats.figure(name, row.estimates[name].mean) for name in ("examples", "bytes_sent", seconds)
  )
  time += " of virtual time" if seconds == "virtual_seconds" else ""
  return f"{examples} examples, {sent} sent per worker and {time}"


Sentence = tuple[str, str]  # its subject ("" for none), and the text
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Soonest",
  "virtual_seconds": "Soonest in virtual time",
}  # fmt: skip


def finding(comparison: Comparison, table: Sequence[LabelRow]) -> list[Sentence]:
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


def _names(table: Sequence[LabelRow]) -> str:
  return formats.listed([row.label for row in table])


def _figure(row: LabelRow, name: str) -> str:
  return formats.figure(name, row.estimates[name].mean) + row.signs * (name not in SCORES)


def _claimed(cost: Cost, comparison: Comparison) -> str:
  """What the best of a cost is."""
  claim, where = f"{CLAIMS[cost.name]} to {comparison.goal}", layout(comparison)
  if not cost.all_send:
    claim += ", of those that send any"
  return f"{claim} as measured with {where}" if cost.name == "seconds" and where else claim


def _claim(table: Sequence[LabelRow], name: str, ranked: list[LabelRow], rivals: list[LabelRow]) -> str:
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


def next_one(table: Sequence[LabelRow], name: str, row: LabelRow, best: LabelRow) -> str:
  """Name the second of a ranking and its difference from the first."""
  return f"the next on average, {row.label}, {versus(table, name, row, best)}"


def versus(table: Sequence[LabelRow], name: str, row: LabelRow, best: LabelRow) -> str:
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


def expected(comparison: Comparison, table: Sequence[LabelRow]) -> list[Sentence]:
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


def order(table: Sequence[LabelRow], first: str, second: str, seconds: str) -> int:
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
