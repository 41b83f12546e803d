"""What a comparison found, in sentences that claim no more than its seeds show."""

from collections.abc import Callable, Sequence

from experiments import report_format
from experiments.report_data import Comparison
from experiments.report_rows import Estimate, Row, cost, final, ranking

Sentence = tuple[str, str]  # what it is about ("" for none), and what it says
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Soonest",
  "virtual_seconds": "Soonest in virtual time",
}  # fmt: skip


def finding(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
  """Who met the target with the fewest examples and bytes and soonest, who did not, who ends best."""
  target = report_format.target(comparison.metric, comparison.target)
  goal = f"a {report_format.NAMES[comparison.metric]} of {target}"
  ran = [row for row in table if row.finished or row.reached]
  if not ran:
    return [("", "No algorithm has a result.")]
  complete = [row for row in ran if row.reached == row.seeds]
  partial = [row for row in ran if 0 < row.reached < row.seeds]
  sentences: list[Sentence] = []
  if len(ran) > 1 and all(row.seeds == 1 for row in ran):
    sentences.append(("One seed only", "it shows no spread, so that another seed may well give another order."))
  if complete:
    sentences.append(("", f"{_names(complete)} reached {goal}{_seeds(ran)}."))
    sentences += _costs(complete, comparison.seconds)
  else:
    ending = ", so none is ranked." if partial else "."
    sentences.append(("", f"No algorithm reached {goal}{_seeds(ran)}{ending}"))
  if partial:
    told = [f"{row.label} ({row.reached} of {row.seeds})" for row in partial]
    sentences.append(("", f"Only some seeds got there with {report_format.listed(told, 12)}: not ranked."))
  never = [row for row in ran if not row.reached]
  if never and (complete or partial):
    sentences.append(("", f"{_names(never)} never did."))
  word = "Highest" if comparison.higher_is_better else "Lowest"
  ranked, rivals = ranking(ran, final, comparison.higher_is_better)
  if len(ranked) > 1:
    claim = f"{word} {report_format.NAMES[comparison.metric]} at the end"
    sentences.append(_claim(comparison.metric, claim, ranked, rivals, final))
  nothing = [row for row in table if row not in ran]
  if nothing:
    sentences.append(("", f"There is no result for {_names(nothing)}."))
  return sentences


def _names(table: Sequence[Row]) -> str:
  return report_format.listed([row.label for row in table], 12)


def _seeds(table: Sequence[Row]) -> str:
  return " with every seed" if any(row.seeds > 1 for row in table) else ""


def _costs(complete: Sequence[Row], seconds: str) -> list[Sentence]:
  names = ("examples", "bytes_sent", seconds)
  if len(complete) == 1:
    costs = complete[0].costs
    examples, sent, time = (report_format.figure(name, costs[name].mean, costs[name].half) for name in names)
    time += " of virtual time" if seconds == "virtual_seconds" else ""
    return [("", f"It took {examples} examples, {sent} sent per worker and {time}.")]
  sentences = []
  silent = [row for row in complete if row.sends_nothing]
  for name in names:
    claim = CLAIMS[name]
    # Who sends nothing wins on bytes without contest, which says nothing of the others.
    counted = [row for row in complete if name != "bytes_sent" or row not in silent]
    if name == "bytes_sent" and silent:
      claim += ", of those that send any"
    ranked, rivals = ranking(counted, cost(name))
    if ranked:
      sentences.append(_claim(name, claim, ranked, rivals, cost(name)))
  return sentences


def _claim(
  name: str, claim: str, ranked: list[Row], rivals: list[Row], estimate: Callable[[Row], Estimate | None]
) -> Sentence:
  def told(row: Row) -> str:
    found = estimate(row)
    return f"{row.label} ({report_format.figure(name, found.mean, found.half)})" if found else row.label

  if rivals:
    others = f"{report_format.listed([row.label for row in rivals])} {'is' if len(rivals) == 1 else 'are'}"
    best = estimate(ranked[0])
    if best is None or best.half is None:  # one seed: what cannot be told apart lies between two evaluations
      return claim, f"no clear winner; {told(ranked[0])} is ahead, but {others} within one evaluation of it."
    return claim, f"no clear winner; {told(ranked[0])} is ahead on average, but {others} within the noise."
  return claim, told(ranked[0]) + (f", then {told(ranked[1])}." if len(ranked) > 1 else ".")
