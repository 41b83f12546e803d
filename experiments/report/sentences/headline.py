"""The first sentence of a report: which algorithms reach the target at the lowest cost, and which do not reach it."""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.perf.units import counted
from experiments.report import formats
from experiments.report.reader import Comparison
from experiments.report.table_rows import Row, pairs, ranking

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
  ranked: list[Row]
  rivals: list[Row]  # of the first one: no row is significantly better than they
  unjudged: list[Row]  # that no test compares with the best, as of a grid not each is tested with each
  all_send: bool  # else those that send nothing are not ranked by bytes

  @property
  def best(self) -> list[Row]:
    """The first and its rivals."""
    return [self.ranked[0], *self.rivals]


def costs(table: Sequence[Row], comparison: Comparison) -> list[Cost]:
  """Of examples, bytes and time; [] with fewer than two algorithms that reach the target."""
  complete = [row for row in table if row.reached == row.seeds]
  found = []
  for name in ("examples", "bytes_sent", comparison.seconds):
    ranked, rivals, unjudged = ranking(table, name, complete)
    if len(ranked) > 1:  # one alone is no best
      all_send = name != "bytes_sent" or not any(row.sends_nothing for row in complete)
      found.append(Cost(name, ranked, rivals, unjudged, all_send))
  return found


def headline(table: Sequence[Row], comparison: Comparison) -> str:
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
  table: Sequence[Row], complete: Sequence[Row], found: Sequence[Cost], baseline: Row | None, goal: str, every: str,
  details: int,
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


def early_clause(best: Sequence[Row], count: int) -> list[str]:
  """One clause on those of the best whose costs are no measurement, or none."""
  labels = list(dict.fromkeys(row.label for row in best if row.early))
  return [f"{_named(labels, count)} did before the first evaluation, so that the order is a guess"] if labels else []


def winners(table: Sequence[Row], found: Sequence[Cost]) -> tuple[list[tuple[list[str], list[Cost]]], list[str]]:
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


def _reaching(complete: Sequence[Row], table: Sequence[Row]) -> str:
  if len(complete) == len(table) > FEW:
    return f"all {len(table)} algorithms"
  return _named([row.label for row in complete], len(table))


def _baseline(complete: Sequence[Row], comparison: Comparison) -> Row | None:
  """The one synchronous SGD, which everybody knows; None where there is none or several."""
  names = {result.info["label"]: result.info["name"] for result in comparison.results}
  found = [row for row in complete if names[row.label] == "sync_sgd"]
  return found[0] if len(found) == 1 else None


def _figures(table: Sequence[Row], cost: Cost, baseline: Row | None) -> str:
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


def _spent(row: Row, seconds: str) -> str:
  examples, sent, time = (
    formats.figure(name, row.estimates[name].mean) for name in ("examples", "bytes_sent", seconds)
  )
  time += " of virtual time" if seconds == "virtual_seconds" else ""
  return f"{examples} examples, {sent} sent per worker and {time}"
