"""Significant differences over paired seeds: one verdict everywhere in a report, and the expected orderings."""

import json
import math

import numpy as np
import pytest
from helpers.comparisons import comparison, finding_of, ranked, rising, rows_of, undrawn_page
from helpers.schedules import virtual

from ddl.names import Place
from ddl.report import clusters, findings, reader
from ddl.report import table as table_rows
from ddl.report.cells import column
from ddl.report.figures import curve_data
from ddl.report.statistics import summary
from ddl.report.table import LabelRow


def meets_at(*evaluations):
  """A seed for each: the target is met at that evaluation."""
  return [rising(*[0.1] * number, 0.95, 0.96) for number in evaluations]


def test_paired_seeds_differ_significantly_where_intervals_overlap(tmp_path):
  late = meets_at(4, 10, 21)
  folder = comparison(tmp_path, {"local_sgd": meets_at(2, 5, 10), "easgd": late, "dasgd": late[::-1]})
  rows = rows_of(folder)
  means, intervals = zip(*(rows[label].estimates["step"][:2] for label in ("local_sgd", "easgd")), strict=True)
  assert intervals[0][1] > means[1] > intervals[1][0]  # they overlap
  # dasgd has the same figures for other seeds
  assert table_rows.marks(list(rows.values()), "step") == {"local_sgd": "best", "dasgd": "tied"}
  assert ranked(folder, "examples") == (["local_sgd", "easgd", "dasgd"], ["dasgd"])


def test_a_cell_has_the_interval_of_a_cost_in_small_print_and_of_a_score_beside_it(tmp_path):
  """Met at steps 10, 30 and 60: Student's interval of these would begin below 0."""
  seeds = [rising(*[0.1] * number, *[0.95] * (8 - number)) for number in (1, 3, 6)]
  cells = column(list(rows_of(comparison(tmp_path, {"easgd": seeds})).values()), "step")
  assert [cell.text for cell in cells] == ["26"] and summary([10, 30, 60])[0] < summary([10, 30, 60])[1]
  ratio = math.exp(4.302652729911275 * np.std(np.log([10, 30, 60]), ddof=1) / math.sqrt(3))  # t(0.975, 2)
  mean = 18000 ** (1 / 3)
  assert cells[0].details == (f"{mean / ratio:.0f} to {mean * ratio:.0f}",)
  (plain,) = column(list(rows_of(tmp_path).values()), "step", intervals=False)
  (score,) = column(list(rows_of(tmp_path).values()), "test_accuracy")
  assert plain.details == score.details == () and score.text == "95.00 ± 0.00 %"


def test_those_not_significantly_different_from_the_best_are_so_among_themselves(tmp_path):
  """The best mean spreads so much that none differs significantly from it; but one of the others beats the other."""
  seeds = {"wide": meets_at(1, 2, 12), "near": meets_at(6, 6, 6), "far": meets_at(8, 8, 8)}
  assert ranked(comparison(tmp_path, seeds), "examples") == (["wide", "near", "far"], ["near"])


@pytest.mark.parametrize(
  ("first", "second", "significant"),
  [
    ((4, 18, 6), (10, 45, 15), True),  # 2.5 times as long with every seed; as a difference it would not be significant
    ((4, 18, 6), (5, 19, 7), False),  # adjacent evaluations
    ((4, 18, 6), (9, 12, 7), False),
    ((4, 18, 6), (6, 18, 4), False),  # equal means
    ((4,), (10,), True),  # the order of the one seed
    ((1, 1, 1), (2, 4, 3), True),  # t = 5.2
  ],
)
def test_table_finding_expectation_and_cluster_give_one_verdict(tmp_path, first, second, significant):
  """The cluster's clock is that of the comparison."""
  folder = virtual(tmp_path, {"a": meets_at(*first), "b": meets_at(*second)})
  info = json.loads((folder / "comparison.json").read_text())
  clock = {run: reader.read_run(folder / run).columns["virtual_seconds"].tolist()
           for entry in info["algorithms"] for run in entry["runs"]}  # fmt: skip
  info["clusters"] = [
    {"name": "same", "bandwidth": 1e9, "link": "between nodes",
     "break_even": {"winner": "a", "crossings": [], "searched": [1.0, 2.0],
                    "ends": [{"ratio": 1, "first": "a", "second": "b"}] * 2},
     "algorithms": {e["label"]: {"seconds": [clock[run] for run in e["runs"]]} for e in info["algorithms"]}}
  ]  # fmt: skip
  (folder / "comparison.json").write_text(json.dumps(info))
  found = reader.read(folder)
  table = table_rows.rows(found)
  (cluster,) = clusters.on_clusters(found)
  assert table_rows.marks(cluster.table, "virtual_seconds") == table_rows.marks(table, "virtual_seconds")
  winner, rivals = ranked(folder, "virtual_seconds")
  assert cluster.sentence.startswith(f"On same with 8 workers: {winner[0]} ")
  claim = finding_of(folder)["Soonest in virtual time to 95 %"]
  doubts = {"not significantly different" in text for text in (cluster.sentence, claim)}
  assert doubts == {bool(rivals)} == {not significant}
  assert (findings.order(table, winner[0], winner[1], "virtual_seconds") == 0) == (not significant)


def row(label, *seconds, seeds=3):
  """An algorithm that met the target after so many seconds, one figure a seed."""
  figures = {f"seed {number}": value for number, value in enumerate(seconds)}
  costs = {"virtual_seconds": table_rows.estimate("virtual_seconds", figures)} if seconds else {}
  return LabelRow(label, seeds, seeds, len(seconds), costs, False, [], Place(label, {}))


TABLE = [
  row("a", 1.0, 1.1, 0.9), row("b", 2.0, 2.21, 1.81), row("c", 1.9, 2.25, 1.81), row("never"), row("some", 0.1, 0.1),
  row("hard", 1.0, 5.0, 3.0), row("harder", 1.5, 7.51, 4.49),
]  # fmt: skip


@pytest.mark.parametrize(
  ("first", "second", "verdict"),
  [
    ("a", "b", -1), ("b", "c", 0), ("a", "never", -1), ("some", "a", 0), ("some", "never", 0), ("a", "missing", 0),
    ("hard", "harder", -1), ("a", "hard", 0),
  ],
)  # fmt: skip
def test_the_order_of_a_pair(first, second, verdict):
  found = [findings.order(TABLE, *each, "virtual_seconds") for each in ((first, second), (second, first))]
  assert found == [verdict, -verdict]


@pytest.mark.parametrize("seeds", [1, 3])
def test_expected_orderings_are_counted(seeds):
  def told(*pairs):
    info = {"expected": pairs, "seeds": list(range(seeds))}
    found = reader.Comparison(info, "test_accuracy", 0.95, "virtual_seconds", [])
    return findings.expected(found, TABLE)

  ((subject, text),) = told(("a", "b"), ("b", "a"), ("a", "c"), ("b", "c"))
  assert subject.startswith("2 of 4 ") and ("one seed" in subject) == (seeds == 1)
  parts = [part.rpartition(": ") for part in text.strip(".").split("; ")]
  assert [(bool(verdict), pairs) for verdict, _, pairs in parts] == [
    (False, "a before b and a before c"), (True, "b before a"), (True, "b before c")
  ]  # fmt: skip
  assert told() == []


def test_two_seeds_are_drawn_and_no_band(tmp_path):
  seeds = [rising(0.1, 0.5, 0.9), rising(0.1, 0.6, 0.94)]
  for count in (1, 2, 3):
    folder = comparison(tmp_path / str(count), {"easgd": (seeds + seeds)[:count]})
    (line,) = curve_data.chart(reader.read(folder), "examples", "test_accuracy").lines
    assert (line.band is not None, len(line.rest)) == (count == 3, 2 * (count == 2))
    text = undrawn_page(folder)
    assert ("its two seeds" in text) == (count == 2) and ("over the seeds as a band" in text) == (count == 3)


def test_a_log_axis_has_the_means_and_bands_of_the_logarithm(tmp_path):
  losses = ([2.0, 0.02], [2.0, 0.08], [2.0, 0.04])
  seeds = [rising(0.1, 0.5) for _ in losses]
  for seed, values in zip(seeds, losses, strict=True):
    for line, loss in zip(seed, values, strict=True):
      line["test_loss"] = loss
  chart = curve_data.chart(reader.read(comparison(tmp_path, {"easgd": seeds})), "examples", "test_loss")
  (line,) = chart.lines
  assert chart.log_y and len(chart.notes) == 1
  np.testing.assert_allclose(line.mean, [2.0, 0.04])
  ratio = 2 ** (4.302652729911275 / math.sqrt(3))  # t(0.975, 2) s / sqrt(n) of the logarithms to base 2
  np.testing.assert_allclose([side[1] for side in line.band], [0.04 / ratio, 0.04 * ratio])


def test_one_test_example_with_every_seed_is_not_a_significant_difference_of_accuracy(tmp_path):
  right = (340, 345, 349)
  runs = {label: [rising(0.1, (count + more) / 360) for count in right] for label, more in (("a", 1), ("b", 0))}
  table = list(rows_of(comparison(tmp_path, runs)).values())
  assert table_rows.pairs(table, "test_accuracy")["a", "b"].p == pytest.approx(0.0513, abs=1e-4)  # t = sqrt(18), 2 df
  assert table_rows.marks(table, "test_accuracy") == {"a": "best", "b": "tied"}


def test_a_tie_tells_how_many_more_seeds_would_separate_the_first_two(tmp_path):
  folder = comparison(tmp_path, {"a": meets_at(4, 18, 6), "b": meets_at(9, 20, 7)})
  more = table_rows.pairs(list(rows_of(folder).values()), "examples")["a", "b"].more_seeds
  assert 1 < more < 100 and f"; {more} " in finding_of(folder)["Fewest examples to 95 %"]
