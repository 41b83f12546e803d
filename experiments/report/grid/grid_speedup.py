"""Speed-ups of a grid: a cost of the target with the fewest workers over that with more, paired by seed."""

from collections.abc import Sequence

from experiments.report.inference.statistics import log_summary
from experiments.report.table_rows import Estimate, Row


def speedups(table: Sequence[Row], name: str, least: int) -> tuple[dict[str, Estimate], set[str]]:
  """By label, where every seed has both costs; and the labels with a cost from before a first evaluation in theirs."""
  base = {_without_workers(row): row for row in table if row.place.point.get("workers") == least and row.of_all(name)}
  ratios, early = {}, set()
  for row in table:
    one, found = base.get(_without_workers(row)), row.of_all(name)
    if one and found:
      first = one.estimates[name].seeds
      seeds = {seed: first[seed] / cost for seed, cost in found.seeds.items() if cost > 0 and first[seed] > 0}
      if len(seeds) == row.seeds:  # none has met the target before the first step
        ratios[row.label] = Estimate(*log_summary(list(seeds.values())), seeds)
        early |= {row.label} if one.early or row.early else set()
  return ratios, early


def _without_workers(row: Row) -> tuple[str, str]:
  return row.place.group, repr({key: value for key, value in row.place.point.items() if key != "workers"})
