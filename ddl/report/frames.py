"""Build and write the data frames of a comparison; docs/howto/results_in_python.md describes their columns."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ddl.names import Place, comparable
from ddl.report import formats, statistics
from ddl.report.reader import PREDICTED, Columns, ComparisonRecord, DataFrame, is_score
from ddl.report.statistics import MOST

METRICS, TABLE, PAIRS, FINDINGS = "metrics.csv", "table.csv", "pairs.csv", "findings.json"
PERPLEXITY = "test_perplexity"
PAIR_TYPES = {
  "quantity": "str", "cluster": "str", "first": "str", "second": "str", "scale": "str", "estimate": "float64",
  "low": "float64", "high": "float64", "p": "float64", "p_holm": "float64", "significant": "boolean", "seeds": "int64",
  "missing_first": "int64", "missing_second": "int64", "more_seeds": "Int64", "more_seeds_capped": "boolean",
}  # fmt: skip


class Quantity(NamedTuple):
  """A quantity with one number per run: a score at the end of training, or a cost of reaching the target."""

  metric: str  # a column of the metrics frame
  cluster: str  # the cluster of predicted seconds, else ""
  name: str  # the column in the runs frame and in the table of results
  title: str
  is_score: bool


def quantity(metric: str) -> Quantity:
  """Return the quantity, a score or a cost, that is computed from a column of the metrics frame."""
  cluster = metric.removeprefix(f"{PREDICTED}_") if metric.startswith(PREDICTED) else ""
  to_target = f"{PREDICTED}_to_target_{cluster}" if cluster else f"{metric}_to_target"
  title = f"predicted seconds on {cluster}" if cluster else formats.name(metric)
  name = metric if is_score(metric) else to_target
  return Quantity(metric, cluster, name, title, is_score(metric))


class Frames(NamedTuple):
  """The data frames of a comparison, from which tables, text and figures are generated."""

  comparison: ComparisonRecord
  runs: DataFrame  # see `runs_frame`
  table: DataFrame  # see `table_frame`
  pairs: DataFrame  # see `pairs_frame`

  @property
  def labels(self) -> list[str]:
    """The labels of the compared algorithms, in the order of the comparison."""
    return self.table["label"].tolist()

  @property
  def complete(self) -> list[str]:
    """The labels of the algorithms that reached the target with every seed."""
    return self.table["label"][self.table["reached"] == self.table["seeds"]].tolist()

  @property
  def silent(self) -> list[str]:
    """The labels of the algorithms that reached the target by training, without sending anything."""
    table = self.table
    return table["label"][(table["bytes_sent_to_target"] == 0) & (table["step_to_target"] > 0)].tolist()

  @property
  def single(self) -> bool:
    """Whether there is only one seed, and therefore no intervals or tests."""
    return bool((self.table["seeds"] == 1).all())


def scores(comparison: ComparisonRecord) -> list[Quantity]:
  """Return the scores: the target's metric, and the perplexity if it was measured; [] if runs stop at the target."""
  if comparison.stops:
    return []
  also = comparison.metric != PERPLEXITY and PERPLEXITY in comparison.measured
  return [quantity(comparison.metric), *[quantity(PERPLEXITY)] * also]


def costs(comparison: ComparisonRecord) -> list[Quantity]:
  """Return the quantities that measure the cost of reaching the target: steps, examples, bytes and time."""
  return [quantity(metric) for metric in ("step", "examples", "bytes_sent", comparison.seconds)]


def headline_quantities(comparison: ComparisonRecord) -> list[Quantity]:
  """Return the quantities in the findings: examples, bytes, time and the target's metric."""
  return [*costs(comparison)[1:], *scores(comparison)[:1]]


def quantities(comparison: ComparisonRecord) -> list[Quantity]:
  """Return all scores, all costs, and the predicted seconds to the target on each cluster."""
  clusters = [quantity(f"{PREDICTED}_{name}") for name in comparison.clusters]
  return [*scores(comparison), *costs(comparison), *clusters]


def build(comparison: ComparisonRecord) -> Frames:
  """Build the frames of a comparison."""
  runs = runs_frame(comparison)
  pairs = pairs_frame(comparison, runs)
  return Frames(comparison, runs, table_frame(comparison, runs, pairs), pairs)


def metrics_frame(comparison: ComparisonRecord) -> DataFrame:
  """Return all evaluations: a row for each algorithm label, seed and step, in the order of the comparison."""
  comparison = comparison.whole or comparison  # includes seeds that only some labels have
  keys, frames, measured = comparison.info["grid"], [], comparison.measured
  for result in comparison.results:
    for seed, columns in result.runs.items():
      place = {"label": result.info["label"], "seed": seed} | _place(result.info, keys)
      repeated = {name: [value] * len(columns["step"]) for name, value in place.items()}
      frames.append(pd.DataFrame(repeated | {name: columns[name] for name in measured}))
  if not frames:
    return pd.DataFrame(columns=["label", "seed"])
  metrics = pd.concat(frames, ignore_index=True).infer_objects()
  return metrics.astype({name: "int64" for name in ("step", "examples") if not np.isnan(metrics[name]).any()})


def _place(info: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
  """Return an algorithm's group and its values of the grid's keys; {} without a grid."""
  values = {key: tuple(value) if isinstance(value := info["point"].get(key), list) else value for key in keys}
  return {"group": info["group"]} | values if keys else {}


def runs_frame(comparison: ComparisonRecord) -> DataFrame:
  """Return the outcome of every run: a row for each algorithm label and requested seed.

  Columns: label; seed; problem, the reason why the run has no final score, "" if it is complete; early, whether it met
  the target before the first evaluation after the start; fell_back, whether a later evaluation missed the target; and a
  column for each quantity.
  """
  ends, gap = {}, 0.0  # last steps and longest evaluation interval, as shares of a label's steps
  for label, result in zip(comparison.seeds, comparison.results, strict=True):
    steps = {seed: columns["step"] / result.info["settings"]["steps"] for seed, columns in result.runs.items()}
    ends[label] = {seed: share[-1] for seed, share in steps.items()}
    gap = max([gap, *(np.diff(share).max(initial=0) for share in steps.values())])
  # Evaluations are at round boundaries, so complete runs may end up to one evaluation apart.
  enough = max((end for shares in ends.values() for end in shares.values()), default=0) - gap
  flags = dict.fromkeys(("early", "fell_back"), bool)
  blank = dict.fromkeys(flags, False) | {quantity.name: math.nan for quantity in quantities(comparison)}
  rows = []
  for label, result in zip(comparison.seeds, comparison.results, strict=True):
    for seed in comparison.seeds[label]:
      outcome = {"problem": "has no metrics"}
      if seed in result.runs:
        is_short = ends[label][seed] < max(ends[label].values()) or ends[label][seed] <= enough
        outcome = _outcome(comparison, result.runs[seed], is_short)
      rows.append(blank | {"label": label, "seed": seed} | outcome)
  return pd.DataFrame(rows, columns=["label", "seed", "problem", *blank]).astype(flags)


def _outcome(comparison: ComparisonRecord, columns: Columns, short: bool) -> dict[str, Any]:
  """Return the problem, scores and costs of a run. short: whether it ended earlier than complete runs."""
  values, steps = columns[comparison.metric], columns["step"]
  # The first line is from before training and has no training loss.
  bad = ~np.isfinite(values) | (~np.isfinite(columns["train_loss"]) & (steps > 0))
  met = statistics.crossing(steps, values, comparison.target, comparison.higher_is_better)
  problem = f"stopped at step {steps[-1]:,.0f}" if short and not (comparison.stops and met) else ""
  if np.isnan(values).all():
    problem = f"has no {formats.name(comparison.metric)}"
  elif bad.any():
    problem = f"diverged at step {steps[np.argmax(bad)]:,.0f}"
  line: dict[str, Any] = {"problem": problem}
  if not problem:
    line |= {quantity.name: float(columns[quantity.metric][-1]) for quantity in scores(comparison)}
  if met:
    line |= {"early": met.unseen, "fell_back": met.missed_again}
    for quantity in quantities(comparison):
      if not quantity.is_score:
        line[quantity.name] = float(np.interp(met.step, steps, columns[quantity.metric]))
  return {key: math.nan if isinstance(value, float) and math.isinf(value) else value for key, value in line.items()}


def pairs_frame(comparison: ComparisonRecord, runs: DataFrame) -> DataFrame:
  """Compare pairs of algorithms: return a row for each quantity and each pair that is `names.comparable`."""
  places = {info["label"]: Place(info["group"], info["point"]) for info in comparison.infos}
  family = [pair for pair in combinations(places, 2) if comparable(*(places[label] for label in pair))]
  rows = []
  for quantity in quantities(comparison):
    measured = runs.dropna(subset=quantity.name)
    values = measured.set_index("seed")[quantity.name].groupby(measured["label"].to_numpy())
    figures = {label: {} for label in places} | {label: of_label.to_dict() for label, of_label in values}
    missing = {label: len(comparison.seeds[label]) - len(figures[label]) for label in places}
    untested = {(a, b) for a, b in family if missing[a] or missing[b]}
    is_share = formats.is_share(quantity.metric)
    resolution = statistics.share_resolution(measured[quantity.name]) if is_share else 0.0
    tests = statistics.paired_tests(figures, not quantity.is_score, family, resolution, untested)
    named = {"quantity": PREDICTED if quantity.cluster else quantity.metric, "cluster": quantity.cluster or None}
    for (a, b), pair in tests.items():
      place = named | {"first": a, "second": b, "missing_first": missing[a], "missing_second": missing[b]}
      rows.append(place | pair._asdict())
  frame = pd.DataFrame(rows, columns=list(PAIR_TYPES)).astype(PAIR_TYPES)
  more = frame["more_seeds"]
  return frame.assign(more_seeds=more.clip(upper=MOST), more_seeds_capped=more > MOST)


def table_frame(comparison: ComparisonRecord, runs: DataFrame, pairs: DataFrame) -> DataFrame:
  """Return the table of results: a row for each algorithm label, in the order of the comparison."""
  keys = comparison.info["grid"]
  table = pd.DataFrame([{"label": info["label"]} | _place(info, keys) for info in comparison.infos])
  table["seeds"] = [len(comparison.seeds[label]) for label in table["label"]]
  flags = runs.assign(finished=runs["problem"] == "", reached=runs["step_to_target"].notna())
  sums = flags.groupby("label")[["finished", "reached", "early", "fell_back"]].sum()
  table = table.join(sums.reindex(table["label"], fill_value=0), on="label")
  for quantity in quantities(comparison):
    name = quantity.name
    values = [runs[name][runs["label"] == label].dropna().tolist() for label in table["label"]]
    table[[name, f"{name}_low", f"{name}_high"]] = [estimate(quantity.metric, seeds) for seeds in values]
    is_partial = table["seeds"].gt([len(seeds) for seeds in values]) & table[name].notna()
    table[f"{name}_mark"] = pd.Series("partial", table.index).where(is_partial).astype("str")
    order = ranking(Frames(comparison, runs, table, pairs), quantity)
    if len(order.ranked) > 1:
      marks = dict.fromkeys(order.rivals, "tied") | dict.fromkeys(order.best, "best")
      table[f"{name}_mark"] = table["label"].map(marks.get).fillna(table[f"{name}_mark"]).astype("str")
  return table


def estimate(metric: str, values: Sequence[float]) -> tuple[float, float, float]:
  """Return (mean, low, high): the mean of a metric's values and its 95 % interval by Student's t; NaN if undefined.

  For costs, both are computed on logarithms, so the mean is geometric.
  """
  if not is_score(metric):
    return statistics.log_summary(values)
  mean, half = statistics.summary(values)
  low, high = statistics.interval_ends(metric, mean, half)
  return mean, float(low), float(high)


class Ranking(NamedTuple):
  """Algorithm labels ranked by their means, with the results of the significance tests."""

  ranked: list[str]  # the labels with a value for every seed, best first
  best: list[str]  # the labels with the best mean
  rivals: list[str]  # other labels that may be as good as the best, see `ranking`


def ranking(frames: Frames, quantity: Quantity) -> Ranking:
  """Rank by mean the algorithms that have a value for every seed; for bytes, only those that send anything.

  A rival of the best label is a label that is not significantly worse than any other and that either has the same mean
  as the best label or has been tested against it. So no tested pair among the best label and its rivals differs
  significantly.
  """
  comparison, _, table, _ = frames
  mean = dict(zip(table["label"], table[quantity.name], strict=True))
  whole = table[quantity.name].notna() & (table[f"{quantity.name}_mark"] != "partial") & (not comparison.disjoint)
  sign = -1 if quantity.metric == comparison.metric and comparison.higher_is_better else 1
  silent = frames.silent if quantity.metric == "bytes_sent" else []
  ranked = sorted(table["label"][whole & ~table["label"].isin(silent)], key=lambda label: sign * mean[label])
  best = [label for label in ranked if mean[label] == mean[ranked[0]]]
  tests = both_orders(frames, quantity)["verdict"].dropna()
  worse = {second for (first, second), verdict in tests.items() if first in ranked and verdict == -sign}
  equal = {*best, *(second for first, second in tests.index if first in best)} - worse
  rivals = [label for label in ranked[1:] if label in equal]
  return Ranking(ranked, best, rivals)


def of_quantity(pairs: DataFrame, quantity: Quantity) -> DataFrame:
  """Select a quantity's rows of the pairs frame."""
  return pairs[pairs["cluster"] == quantity.cluster if quantity.cluster else pairs["quantity"] == quantity.metric]


def both_orders(frames: Frames, quantity: Quantity) -> DataFrame:
  """Return a quantity's rows of the pairs frame and their inverses, (second, first), indexed by the two labels.

  The column verdict is 1 or -1 if the first is significantly larger or smaller, else 0; None if untested. With only one
  seed, the verdict is the order in that seed.
  """
  rows = of_quantity(frames.pairs, quantity)
  inverse = rows.rename(columns={"first": "second", "second": "first", "low": "high", "high": "low"})
  for name in ("estimate", "low", "high"):
    inverse[name] = np.where(inverse["scale"] == "ratio", 1 / inverse[name], -inverse[name])
  both: DataFrame = pd.concat([rows, inverse]).set_index(["first", "second"])
  signs = np.nan_to_num(np.sign(both["estimate"] - (both["scale"] == "ratio"))).astype(int)
  is_settled = both["significant"].fillna(False).astype(bool) | frames.single
  verdict = (is_settled * signs).astype(object).where(both["significant"].notna() | frames.single, None)
  return both.assign(verdict=verdict)


def write(folder: Path, frames: Frames, findings: Sequence[tuple[str, str]]) -> None:
  """Write metrics.csv, table.csv, pairs.csv and findings.json.

  findings.json contains the comparison's title and target, the findings (subject, text), the table and the pairs.
  """
  metrics_frame(frames.comparison).to_csv(folder / METRICS, index=False)
  frames.table.to_csv(folder / TABLE, index=False)
  frames.pairs.to_csv(folder / PAIRS, index=False)
  content = {name: frames.comparison.info[name] for name in ("title", "target")}
  content["findings"] = [{"subject": subject, "text": text} for subject, text in findings]
  for name, frame in (("table", frames.table), ("pairs", frames.pairs)):
    finite = frame.replace([math.inf, -math.inf], math.nan).astype(object)
    content[name] = finite.where(finite.notna(), None).to_dict("records")
  text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
  (folder / FINDINGS).write_text(text + "\n", encoding="utf-8")
