"""The figures of a comparison as pandas frames, and the files of them beside the report.

Unmet targets, diverged runs and statistics of too few seeds are missing values: empty in CSV, null in JSON.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddl.report import clusters
from ddl.report.findings import Sentence
from ddl.report.pair_table import missing, quantities
from ddl.report.paired_test import MOST
from ddl.report.reader import COLUMNS, SCORES, Comparison
from ddl.report.table import LabelRow, marks, rows

if TYPE_CHECKING:
  import pandas as pd  # it takes half a second to import

METRICS, TABLE, PAIRS, FINDINGS = "metrics.csv", "table.csv", "pairs.csv", "findings.json"


def metrics_frame(comparison: Comparison) -> "pd.DataFrame":
  """Every evaluation: a line for each label, seed and step, in the order of the comparison.

  Columns: label; seed; step, of each worker; examples, of all workers together; train_loss, since the evaluation
  before; test_loss; test_perplexity, its exponential, of language models; test_accuracy, a fraction; distance, of the
  workers from their mean; with config.noise_batches also grad_norm2 and grad_noise, estimates of |G|^2 and tr(Sigma),
  and noise_scale, the ratio of their means, in examples; bytes_sent, per worker, in bytes; seconds, measured;
  virtual_seconds; present, workers that made the step, where they come and go; predicted_seconds_NAME, in seconds,
  for every cluster of the comparison.
  Columns without any value are left out, as those of the gradient noise without config.noise_batches.
  With a grid there are, behind the seed, group, the label without the grid, and a column for each key of the grid, in
  full as in the config (algorithm.period, where labels say "period"), missing where the label does not read it.
  """
  import pandas as pd

  comparison = comparison.whole or comparison  # with the seeds that only some labels have
  clocks = {
    f"{clusters.PREDICTED}_{each.entry['name']}": [
      run.columns[clusters.TIME] for result in each.comparison.results for run in result.runs
    ]
    for each in clusters.on_clusters(comparison)
  }
  keys = comparison.info["grid"]
  runs = [(result.info, run) for result in comparison.results for run in result.runs]
  frames = []
  for number, (info, run) in enumerate(runs):
    seed = int(run.name.rpartition(" ")[2])
    fixed = {"label": info["label"], "seed": seed, **_at(info["group"], info["point"], keys, len(run.columns["step"]))}
    frames.append(pd.DataFrame(fixed | run.columns | {name: clock[number] for name, clock in clocks.items()}))
  if not frames:
    return pd.DataFrame(columns=["label", "seed", *_at("", {}, keys, 0), *COLUMNS, *clocks])
  found = pd.concat(frames, ignore_index=True)
  found = found.drop(columns=[name for name in COLUMNS if np.isnan(found[name].to_numpy()).all()]).infer_objects()
  return found.astype({name: "int64" for name in ("step", "examples") if not np.isnan(found[name]).any()})


def table_frame(comparison: Comparison, table: Sequence[LabelRow] | None = None) -> "pd.DataFrame":
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
  in `metrics_frame`:
  `table.pivot(index="workers", columns="group", ...)`.

  Args:
    table: the rows, where they are at hand.
  """
  import pandas as pd

  table = rows(comparison) if table is None else table
  keys = comparison.info["grid"]
  at = [_at(*row.place, keys, 1) for row in table]
  found: dict[str, list[Any]] = {"label": [row.label for row in table]}
  found |= {key: [each[key][0] for each in at] for key in (at[0] if at else {})}
  found |= {
    name: [getattr(row, name) for row in table] for name in ("seeds", "finished", "reached", "early", "fell_back")
  }
  for quantity in quantities(comparison, table):
    name = quantity.name if quantity.name in SCORES else f"{quantity.name}_to_target"
    name += f"_{quantity.cluster}" * bool(quantity.cluster)
    marked, estimates = (
      marks(quantity.rows, quantity.column),
      [(row, row.estimates.get(quantity.column)) for row in quantity.rows],
    )
    ends = [each.interval if each and each.interval else (math.nan, math.nan) for _, each in estimates]
    found[name] = [each.mean if each else math.nan for _, each in estimates]
    found[f"{name}_low"], found[f"{name}_high"] = ([each[side] for each in ends] for side in (0, 1))
    found[f"{name}_mark"] = [
      "partial" if each and not row.of_all(quantity.column) else marked.get(row.label) for row, each in estimates
    ]
  return pd.DataFrame(found).astype({name: "str" for name in found if name.endswith("_mark")})


def _at(group: str, point: Mapping[str, Any], keys: Iterable[str], lines: int) -> dict[str, list[Any]]:
  """The columns of a place in the grid; {} without a grid."""
  values = {key: tuple(each) if isinstance(each := point.get(key), list) else each for key in keys}
  return {key: [value] * lines for key, value in ({"group": group} | values).items()} if values else {}


def pairs_frame(comparison: Comparison, table: Sequence[LabelRow] | None = None) -> "pd.DataFrame":
  """All pairs of labels: a line for each quantity and pair, in the order of the comparison.

  Columns: quantity, a name as in `metrics_frame` (the score is that of the end, costs are those of the target) or
  predicted_seconds; cluster, of predicted seconds; first, second, the labels; scale, "difference" (first minus
  second, in the unit of the quantity) or "ratio" (first over second); estimate, its mean over the seeds that both
  have, of ratios the geometric one; low, high, its 95 % interval, of this pair alone; p, of the two-sided paired
  t-test, of ratios on the logarithm (accuracies spread at least as much as their rounding to whole examples); p_holm,
  adjusted for all tested pairs of the quantity; significant, whether p_holm is below 0.05; effect_size, Hedges' g_z,
  in standard deviations of the paired differences; seeds, that both have; missing_first, missing_second, the seeds of
  which that label has no figure, so that there is no test: all from low to effect_size is missing, as it is of one and
  the same run under two labels; more_seeds, that would separate the pair with a power of 0.8 if its mean and
  spread stay as they are, missing where it is separate already or no number would; more_seeds_capped, whether it
  takes more than that.

  Args:
    table: the rows, where they are at hand.
  """
  import pandas as pd

  lines = []
  for quantity in quantities(comparison, rows(comparison) if table is None else table):
    found = quantity.pairs()
    labels = [row.label for row in quantity.rows]
    absent = {row.label: missing(row, quantity.column) for row in quantity.rows}
    for number, first in enumerate(labels):
      for second in labels[number + 1 :]:
        if (pair := found.get((first, second))) is None:
          continue
        low, high = pair.interval or (None, None)
        tested = pair.p_holm is not None
        lines.append(
          (
            quantity.name, quantity.cluster or None, first, second, "ratio" if pair.ratio else "difference",
            pair.mean, low, high, pair.p, pair.p_holm, pair.sign != 0 if tested else None, pair.effect,
            pair.seeds, absent[first], absent[second], pair.more_seeds and min(pair.more_seeds, MOST),
            None if pair.more_seeds is None else pair.more_seeds > MOST,
          )
        )  # fmt: skip
  columns = {
    "quantity": "str", "cluster": "str", "first": "str", "second": "str", "scale": "str", "estimate": "float64",
    "low": "float64", "high": "float64", "p": "float64", "p_holm": "float64", "significant": "boolean",
    "effect_size": "float64", "seeds": "int64", "missing_first": "int64", "missing_second": "int64",
    "more_seeds": "Int64", "more_seeds_capped": "boolean",
  }  # fmt: skip
  return pd.DataFrame(lines, columns=list(columns)).astype(columns)


def trials_frame(labels: Mapping[str, Any]) -> "pd.DataFrame":
  """A sweep's trials: label, trial, outcome, each key that was tuned, and the scores on the validation split."""
  import pandas as pd

  trials = pd.DataFrame(
    [
      {"label": label, "trial": number, "outcome": each["outcome"]}
      | {f"{section}.{key}": value for section, keys in each["setting"].items() for key, value in keys.items()}
      | (each["validation"] or {})
      for label, entry in labels.items()
      for number, each in enumerate(entry["trials"])
    ]
  )
  return trials.infer_objects()


def write(folder: Path, comparison: Comparison, table: Sequence[LabelRow], findings: Sequence[Sentence]) -> None:
  """Write metrics.csv, table.csv, pairs.csv and findings.json (the findings, the table and the pairs)."""
  frames = {"table": table_frame(comparison, table), "pairs": pairs_frame(comparison, table)}
  metrics_frame(comparison).to_csv(folder / METRICS, index=False)
  for name, file in (("table", TABLE), ("pairs", PAIRS)):
    frames[name].to_csv(folder / file, index=False)
  page = {
    "title": comparison.info["title"],
    "target": comparison.info["target"],
    "findings": [{"subject": subject or None, "text": text} for subject, text in findings],
    **{name: _records(frame) for name, frame in frames.items()},
  }
  text = json.dumps(page, indent=2, ensure_ascii=False, allow_nan=False)
  (folder / FINDINGS).write_text(text + "\n", encoding="utf-8")


def _records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
  """The lines for JSON, which knows neither NaN nor infinity."""
  found = frame.astype(object).where(frame.notna(), None).to_dict("records")
  return [
    {str(key): None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()}
    for line in found
  ]
