"""The model of a comparison: pandas frames of metrics, runs, results (`table`) and pairs, and the files of them.

Unmet targets, diverged runs and statistics of too few seeds are missing values: empty in CSV, null in JSON.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl.names import Place, comparable
from ddl.report import formats, statistics
from ddl.report.reader import COLUMNS, PREDICTED, SCORES, ComparisonRecord, DataFrame, Result, RunRecord
from ddl.report.statistics import LEVEL, MOST

METRICS, TABLE, PAIRS, FINDINGS = "metrics.csv", "table.csv", "pairs.csv", "findings.json"
PERPLEXITY = "test_perplexity"
DETERMINED = ("step", "examples", "train_loss", "test_loss", "test_accuracy", "distance")  # by the computation only


class Quantity(NamedTuple):
  """A figure of each run: a score at the end of training, or a cost of reaching the target."""

  metric: str  # a column of the metrics frame
  cluster: str = ""  # of predicted seconds

  @property
  def name(self) -> str:
    """Its column in the frames of runs and results."""
    if self.metric in SCORES:
      return self.metric
    return f"{PREDICTED}_to_target_{self.cluster}" if self.cluster else f"{self.metric}_to_target"

  @property
  def title(self) -> str:
    """Return the metric in words."""
    return f"predicted seconds on {self.cluster}" if self.cluster else formats.NAMES[self.metric]

  @property
  def is_score(self) -> bool:
    """Whether it is a score, and no cost."""
    return self.metric in SCORES

  @property
  def unit(self) -> str:
    """The metric whose unit it has, for `formats`."""
    return "seconds" if self.cluster else self.metric


class Frames(NamedTuple):
  """What tables, text, page and figures of a comparison are made from; see the functions that build them."""

  comparison: ComparisonRecord
  runs: DataFrame
  table: DataFrame
  pairs: DataFrame

  @property
  def quantities(self) -> list[Quantity]:
    """All quantities, in the order of the table."""
    return quantities(self.comparison)

  @property
  def labels(self) -> list[str]:
    """The labels in the order of the comparison."""
    return self.table["label"].tolist()

  @property
  def complete(self) -> list[str]:
    """The labels that reached the target with every seed."""
    return self.table["label"][self.table["reached"] == self.table["seeds"]].tolist()

  @property
  def single(self) -> bool:
    """Whether there is one seed only, which shows no spread."""
    return bool((self.table["seeds"] == 1).all())


def scores(comparison: ComparisonRecord) -> list[Quantity]:
  """Return the target's metric, and the perplexity where there is one."""
  runs = [run for result in comparison.results for run in result.runs]
  also = comparison.metric != PERPLEXITY and any(np.isfinite(run.columns[PERPLEXITY]).any() for run in runs)
  return [Quantity(comparison.metric), *[Quantity(PERPLEXITY)] * also]


def costs(comparison: ComparisonRecord) -> list[Quantity]:
  """Return what reaching the target is counted in; the last one is time."""
  return [Quantity(metric) for metric in ("step", "examples", "bytes_sent", comparison.seconds)]


def quantities(comparison: ComparisonRecord) -> list[Quantity]:
  """Return scores, costs, and the seconds predicted for each cluster."""
  clusters = [Quantity(f"{PREDICTED}_{name}", name) for name in comparison.clusters]
  return [*scores(comparison), *costs(comparison), *clusters]


def build(comparison: ComparisonRecord) -> Frames:
  """Return the frames of a comparison."""
  runs = runs_frame(comparison)
  pairs = pairs_frame(comparison, runs)
  return Frames(comparison, runs, table_frame(comparison, runs, pairs), pairs)


def metrics_frame(comparison: ComparisonRecord) -> DataFrame:
  """Every evaluation: a line for each label, seed and step, in the order of the comparison.

  Columns: label; seed; step, of each worker; examples, of all workers together; train_loss, since the evaluation
  before; test_loss; test_perplexity, its exponential, of language models; test_accuracy, a fraction; distance, of the
  workers from their mean; with config.noise_batches also grad_norm2 and grad_noise, estimates of |G|^2 and tr(Sigma),
  and noise_scale, the ratio of their means, in examples; bytes_sent, per worker, in bytes; seconds, measured;
  virtual_seconds; present, workers that took part in the step, where some fail; predicted_seconds_NAME, in seconds, for
  every cluster of the comparison. Columns without any value are left out.
  With a grid there are, behind the seed, group, the label without the grid, and a column for each key of the grid, in
  full as in the config (algorithm.period, where labels say "period"), missing where the label does not read it.
  """
  import pandas as pd

  comparison = comparison.whole or comparison  # with the seeds that only some labels have
  keys = comparison.info["grid"]
  frames = [
    pd.DataFrame(
      {"label": result.info["label"], "seed": run.seed, **_place(result.info, keys, len(run.columns["step"]))}
      | run.columns
    )
    for result in comparison.results
    for run in result.runs
  ]
  clocks = [f"{PREDICTED}_{name}" for name in comparison.clusters]
  if not frames:
    return pd.DataFrame(columns=["label", "seed", *(["group", *keys] if keys else []), *COLUMNS, *clocks])
  metrics = pd.concat(frames, ignore_index=True)
  empty = [name for name in COLUMNS if np.isnan(metrics[name].to_numpy()).all()]
  metrics = metrics.drop(columns=empty).infer_objects()
  return metrics.astype({name: "int64" for name in ("step", "examples") if not np.isnan(metrics[name]).any()})


def _place(info: Mapping[str, Any], keys: Sequence[str], lines: int) -> dict[str, list[Any]]:
  """Return the columns of a place in the grid; {} without a grid."""
  if not keys:
    return {}
  values = {key: tuple(value) if isinstance(value := info["point"].get(key), list) else value for key in keys}
  return {key: [value] * lines for key, value in ({"group": info["group"]} | values).items()}


def runs_frame(comparison: ComparisonRecord) -> DataFrame:
  """What every run came to: a line for each label and seed that there should be.

  Columns: label; run, such as "seed 0"; problem, why it has no final score, "" for a finished one; early and
  fell_back, as in `table_frame`; first, the examples at the evaluation before which an early one met the target;
  label_fell_back, whether the mean over the seeds that met the target missed it again, or each of them did; silent,
  whether no run of the label sent anything; same, the first label with the same runs; and a column for each quantity.
  """
  import pandas as pd

  shares = [_shares(result, run) for result in comparison.results for run in result.runs]
  # Evaluations fall on round boundaries, so that complete runs end up to one evaluation apart.
  gap = max((np.diff(share).max(initial=0) for share in shares), default=0)
  enough = max((share[-1] for share in shares), default=0) - gap
  names = [quantity.name for quantity in quantities(comparison)]
  lines: list[dict[str, Any]] = []
  first_with: dict[Any, str] = {}
  for result in comparison.results:
    label, runs = result.info["label"], {run.name: run for run in result.runs}
    content = tuple((run.name, *(run.columns[name].tobytes() for name in DETERMINED)) for run in result.runs)
    of_label = {
      "label": label,
      "label_fell_back": _mean_falls_back(comparison, result),
      "silent": bool(runs) and all(run.columns["bytes_sent"][-1] == 0 for run in result.runs),
      "same": first_with.setdefault(content, label) if content else "",
    }
    blank = {"early": False, "first": 0.0, "fell_back": False} | dict.fromkeys(names, math.nan)
    longest = max((_shares(result, run)[-1] for run in result.runs), default=0)
    for name in comparison.seeds[label]:
      line = of_label | blank | {"run": name, "problem": "no metrics"}
      if name in runs:
        last = _shares(result, runs[name])[-1]
        line |= _outcome(comparison, runs[name], last < longest or last <= enough)
      lines.append(line)
  others = ["early", "first", "fell_back", "label_fell_back", "silent", "same"]
  return pd.DataFrame(lines, columns=["label", "run", "problem", *others, *names])


def _outcome(comparison: ComparisonRecord, run: RunRecord, short: bool) -> dict[str, Any]:
  """Return the problem, the scores and the costs of a run. short: whether it used less than the budget."""
  values, steps = run.columns[comparison.metric], run.columns["step"]
  # The first line stands before training and has no training loss.
  bad = ~np.isfinite(values) | (~np.isfinite(run.columns["train_loss"]) & (steps > 0))
  problem = f"stopped at step {steps[-1]:,.0f}" if short else ""
  if np.isnan(values).all():
    problem = f"has no {formats.NAMES[comparison.metric]}"
  elif bad.any():
    problem = f"diverged at step {steps[np.argmax(bad)]:,.0f}"
  line: dict[str, Any] = {"problem": problem}
  if not problem:
    line |= {quantity.name: float(run.columns[quantity.metric][-1]) for quantity in scores(comparison)}
  if met := statistics.crossing(steps, values, comparison.target, comparison.higher_is_better):
    first = float(run.columns["examples"][steps >= met.step][0]) if met.unseen else 0.0
    line |= {"early": met.unseen, "first": first, "fell_back": met.missed_again}
    for quantity in quantities(comparison):
      if not quantity.is_score:
        line[quantity.name] = float(np.interp(met.step, steps, run.columns[quantity.metric]))
  return {key: math.nan if isinstance(value, float) and math.isinf(value) else value for key, value in line.items()}


def _mean_falls_back(comparison: ComparisonRecord, result: Result) -> bool:
  """Return whether the mean of the runs that met the target, or each of them, misses it at a later evaluation."""
  how = comparison.target, comparison.higher_is_better
  curves = [(run.columns["step"], run.columns[comparison.metric]) for run in result.runs]
  met = [(curve, crossing) for curve in curves if (crossing := statistics.crossing(*curve, *how))]
  again = [crossing.missed_again for _, crossing in met]
  mean = statistics.mean_curve([curve for curve, _ in met])
  if mean is None or not any(again):
    return False
  crossing = statistics.crossing(*mean, *how)
  return all(again) or bool(crossing and crossing.missed_again)


def _shares(result: Result, run: RunRecord) -> np.ndarray:
  """Return the steps of a run as shares of its label's budget."""
  return run.columns["step"] / result.info["settings"]["steps"]


def pairs_frame(comparison: ComparisonRecord, runs: DataFrame) -> DataFrame:
  """All pairs of labels: a line for each quantity and pair, in the order of the comparison.

  Columns: quantity, a name as in `metrics_frame` (the score is that of the end, costs are those of the target) or
  predicted_seconds; cluster, of predicted seconds; first, second, the labels; scale, "difference" (first minus
  second, in the unit of the quantity) or "ratio" (first over second); estimate, its mean over the seeds that both
  have, of ratios the geometric one; low, high, its 95 % interval, of this pair only; p, of the two-sided paired
  t-test, of ratios on the logarithm (accuracies spread at least as much as their rounding to whole examples); p_holm,
  adjusted for all tested pairs of the quantity; significant, whether p_holm is below 0.05; effect_size, Hedges' g_z,
  in standard deviations of the paired differences; seeds, that both have; missing_first, missing_second, the seeds of
  which that label has no figure, so that there is no test: all from low to effect_size is missing, as it is for one
  and the same run under two labels; more_seeds, that would separate the pair with a power of 0.8 if its mean and
  spread stay as they are, missing where it is separate already or no number would; more_seeds_capped, whether it
  takes more than that.
  """
  import pandas as pd

  places = {each.info["label"]: Place(each.info["group"], each.info["point"]) for each in comparison.results}
  family = [pair for pair in combinations(places, 2) if comparable(*(places[label] for label in pair))]
  same = runs.groupby("label")["same"].first().to_dict() if len(runs) else {}
  lines = []
  for quantity in quantities(comparison):
    figures: dict[str, dict[str, float]] = {label: {} for label in places}
    for label, run, value in zip(runs["label"], runs["run"], runs[quantity.name], strict=True):
      if not math.isnan(value):
        figures[label][run] = value
    missing = {label: len(comparison.seeds[label]) - len(figures[label]) for label in places}
    untested = {
      (a, b)
      for a, b in family
      if not (figures[a] and figures[b])
      or missing[a]
      or missing[b]
      or (same[a] and same[a] == same[b] and figures[a] == figures[b])
    }
    values = [value for seeds in figures.values() for value in seeds.values()]
    resolution = statistics.share_resolution(values) if quantity.metric == "test_accuracy" else 0.0
    tests = statistics.paired_tests(figures, not quantity.is_score, family, resolution, untested)
    for (a, b), pair in tests.items():
      low, high = pair.interval or (None, None)
      lines.append(
        (
          PREDICTED if quantity.cluster else quantity.metric, quantity.cluster or None, a, b,
          "ratio" if pair.ratio else "difference", pair.mean, low, high, pair.p, pair.p_holm,
          None if pair.p_holm is None else pair.p_holm < LEVEL, pair.effect, pair.seeds, missing[a], missing[b],
          pair.more_seeds and min(pair.more_seeds, MOST), None if pair.more_seeds is None else pair.more_seeds > MOST,
        )
      )  # fmt: skip
  columns = {
    "quantity": "str", "cluster": "str", "first": "str", "second": "str", "scale": "str", "estimate": "float64",
    "low": "float64", "high": "float64", "p": "float64", "p_holm": "float64", "significant": "boolean",
    "effect_size": "float64", "seeds": "int64", "missing_first": "int64", "missing_second": "int64",
    "more_seeds": "Int64", "more_seeds_capped": "boolean",
  }  # fmt: skip
  return pd.DataFrame(lines, columns=list(columns)).astype(columns)


def table_frame(comparison: ComparisonRecord, runs: DataFrame, pairs: DataFrame) -> DataFrame:
  """The table of results: a line for each label, in the order of the comparison.

  Columns: label; seeds, that there should be (where labels have different seeds, those that all have: the figures are
  of these); finished, those that used the whole budget and ended finite; reached, those that met the target; early,
  those of them that met it before the first evaluation, so that what it cost is mostly invented; fell_back, those of
  them that missed it again at a later evaluation; and of each quantity NAME four columns, NAME, NAME_low, NAME_high,
  NAME_mark. Quantities are the score at the end (test_accuracy, a fraction, or test_loss), test_perplexity of language
  models, and what was spent when the curve first met the target, interpolated between evaluations: step_to_target,
  examples_to_target (of all workers), bytes_sent_to_target (bytes per worker), seconds_to_target (measured) or
  virtual_seconds_to_target, and, in seconds, predicted_seconds_to_target_CLUSTER. NAME is the mean over the seeds that
  have the figure, of costs the geometric one; low and high are its 95 % interval. The mark is "best" (the best mean of
  several), "tied" (tested with the best, or as good, and no algorithm is significantly better), "partial" (not of all
  seeds, so not ranked) or missing. With a grid there are, behind the label, the columns group and one for each key, as
  in `metrics_frame`: `table.pivot(index="workers", columns="group", ...)`.
  """
  import pandas as pd

  labels = [result.info["label"] for result in comparison.results]
  of_label = {label: runs[runs["label"] == label] for label in labels}
  keys = comparison.info["grid"]
  places = [_place(result.info, keys, 1) for result in comparison.results]
  columns: dict[str, Any] = {"label": labels}
  columns |= {key: [place[key][0] for place in places] for key in (["group", *keys] if keys else [])}
  columns["seeds"] = [len(comparison.seeds[label]) for label in labels]
  columns["finished"] = [int(of_label[label][comparison.metric].notna().sum()) for label in labels]
  columns["reached"] = [int(of_label[label]["step_to_target"].notna().sum()) for label in labels]
  columns |= {name: [int(of_label[label][name].sum()) for label in labels] for name in ("early", "fell_back")}
  for quantity in quantities(comparison):
    name = quantity.name
    estimates = [estimate(quantity.metric, of_label[label][name].dropna().tolist()) for label in labels]
    columns[name], columns[f"{name}_low"], columns[f"{name}_high"] = map(list, zip(*estimates, strict=True))
    counts = [int(of_label[label][name].notna().sum()) for label in labels]
    columns[f"{name}_mark"] = [
      "partial" if 0 < n < seeds else None for n, seeds in zip(counts, columns["seeds"], strict=True)
    ]
  table = pd.DataFrame(columns).astype({name: "str" for name in columns if name.endswith("_mark")})
  frames = Frames(comparison, runs, table, pairs)
  for quantity in quantities(comparison):
    order = ranking(frames, quantity)
    if len(order.ranked) > 1:
      marks = dict.fromkeys(order.rivals, "tied") | dict.fromkeys(order.best, "best")
      column = f"{quantity.name}_mark"
      table[column] = table["label"].map(marks.get).fillna(table[column]).astype("str")
  return table


def estimate(metric: str, values: Sequence[float]) -> tuple[float, float, float]:
  """Return the mean and its 95 % interval: of scores Student's, of costs that of the logarithm; NaN for none."""
  if not values:
    return math.nan, math.nan, math.nan
  if metric not in SCORES:
    mean, span = statistics.log_summary(values)
    low, high = span or (math.nan, math.nan)
    return mean, low, high
  mean, half = statistics.summary(values)
  low, high = (math.nan, math.nan) if half is None else statistics.interval_ends(metric, mean, half)
  return mean, float(low), float(high)


class Ranking(NamedTuple):
  """Labels with a figure of every seed, by their mean, and the result of the tests."""

  ranked: list[str]  # the best first
  best: list[str]  # those with the best mean
  rivals: list[str]  # others that are as good as the first, or tested against it, and none is significantly better
  unjudged: list[str]  # labels without a test against the best: in a grid not all pairs are tested


def ranking(frames: Frames, quantity: Quantity, among: Sequence[str] | None = None) -> Ranking:
  """Rank the labels with a figure of every seed by their mean; in bytes only those that send anything.

  No two of the first and its rivals that are tested differ significantly.

  Args:
    among: labels to rank; None: all.
  """
  comparison, runs, table, _ = frames
  mean = dict(zip(table["label"], table[quantity.name], strict=True))
  whole = table[quantity.name].notna() & (table[f"{quantity.name}_mark"] != "partial")
  silent = set(runs["label"][runs["silent"]]) if quantity.metric == "bytes_sent" else set()
  sign = -1 if quantity.metric == "test_accuracy" else 1
  counted = [
    label
    for label in table["label"][whole]
    if not comparison.disjoint and label not in silent and (among is None or label in among)
  ]
  ranked = sorted(counted, key=lambda label: sign * mean[label])
  best = [label for label in ranked if mean[label] == mean[ranked[0]]]
  tests, same = verdicts(frames, quantity), dict(zip(runs["label"], runs["same"], strict=True))

  def against(label: str, others: Sequence[str]) -> list[int | None]:
    """Return the verdicts on others against a label and those that are one and the same run."""
    twins = [
      twin
      for twin in ranked
      if twin == label or (same[label] and same[twin] == same[label] and tests.get((twin, label)) is None)
    ]
    return [tests[other, twin] for twin in twins for other in others if (other, twin) in tests]

  level = [label for label in ranked[1:] if -sign not in against(label, ranked)]
  rivals = [label for label in level if label in best or any(verdict is not None for verdict in against(label, best))]
  return Ranking(ranked, best, rivals, [label for label in level if label not in rivals])


def verdicts(frames: Frames, quantity: Quantity) -> dict[tuple[str, str], int | None]:
  """Return by pair, both ways round, 1 where the first is significantly larger, -1 smaller, 0 neither, None: no test.

  With one seed it is the order in that seed.
  """
  pairs = of_quantity(frames.pairs, quantity)
  signs = np.sign(pairs["estimate"] - (pairs["scale"] == "ratio")).fillna(0).astype(int)
  verdict_of: dict[tuple[str, str], int | None] = {}
  for first, second, sign, significant, seeds in zip(
    pairs["first"], pairs["second"], signs, pairs["significant"].astype(object), pairs["seeds"], strict=True
  ):
    verdict = sign if frames.single and seeds else None
    if isinstance(significant, bool | np.bool_):
      verdict = sign if significant else 0
    verdict_of[first, second], verdict_of[second, first] = verdict, None if verdict is None else -verdict
  return verdict_of


def of_quantity(pairs: DataFrame, quantity: Quantity) -> DataFrame:
  """Return the lines of a quantity."""
  if quantity.cluster:
    return pairs[pairs["cluster"] == quantity.cluster]
  return pairs[pairs["quantity"] == quantity.metric]


def pair(frames: Frames, quantity: Quantity, first: str, second: str) -> dict[str, Any] | None:
  """Return the line of two labels, turned round where the frame has the second one first; None without a line."""
  lines = of_quantity(frames.pairs, quantity)
  direct = lines[(lines["first"] == first) & (lines["second"] == second)]
  turned = lines[(lines["first"] == second) & (lines["second"] == first)]
  if not len(direct) and not len(turned):
    return None
  line = (direct if len(direct) else turned).iloc[0].to_dict()
  if len(direct):
    return line
  swap = (lambda value: 1 / value if value else math.inf) if line["scale"] == "ratio" else (lambda value: -value)
  ends = {"estimate": swap(line["estimate"]), "low": swap(line["high"]), "high": swap(line["low"])}
  return line | ends | {"first": first, "second": second}


def trials_frame(labels: Mapping[str, Any]) -> DataFrame:
  """A sweep's trials: label, trial, outcome, each key that was tuned, and the scores on the validation split."""
  import pandas as pd

  trials = pd.DataFrame(
    [
      {"label": label, "trial": number, "outcome": trial["outcome"]}
      | {f"{section}.{key}": value for section, keys in trial["setting"].items() for key, value in keys.items()}
      | (trial["validation"] or {})
      for label, entry in labels.items()
      for number, trial in enumerate(entry["trials"])
    ]
  )
  return trials.infer_objects()


def write(folder: Path, frames: Frames, findings: Sequence[tuple[str, str]]) -> None:
  """Write metrics.csv, table.csv, pairs.csv and findings.json (the findings, the table and the pairs)."""
  metrics_frame(frames.comparison).to_csv(folder / METRICS, index=False)
  frames.table.to_csv(folder / TABLE, index=False)
  frames.pairs.to_csv(folder / PAIRS, index=False)
  content = {
    "title": frames.comparison.info["title"],
    "target": frames.comparison.info["target"],
    "findings": [{"subject": subject or None, "text": text} for subject, text in findings],
    "table": _records(frames.table),
    "pairs": _records(frames.pairs),
  }
  text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
  (folder / FINDINGS).write_text(text + "\n", encoding="utf-8")


def _records(frame: DataFrame) -> list[dict[str, Any]]:
  """Return the lines for JSON, which knows neither NaN nor infinity."""
  lines = frame.astype(object).where(frame.notna(), None).to_dict("records")
  return [
    {str(key): None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()}
    for line in lines
  ]
