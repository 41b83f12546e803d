"""The rows, rankings and findings of a comparison's report."""

import math
import re

import numpy as np
import pytest
from helpers.comparisons import comparison, finding_of, ranked, rising, rows_of

from ddl.report import findings, page, reader, table
from ddl.report.figures import curve_data
from ddl.report.statistics import summary


def test_costs_are_those_of_the_first_crossing_of_the_target(tmp_path):
  seeds = [rising(0.1, 0.5, 0.95, 0.2, 0.96), rising(0.1, 0.95, 0.5, 0.5, 0.97)]
  row = rows_of(comparison(tmp_path, {"local_sgd": seeds}))["local_sgd"]
  assert (row.seeds, row.finished, row.reached) == (2, 2, 2)
  mean, ratio = math.sqrt(20 * 10), math.exp(12.7062047361747 * math.log(20 / 10) / 2)  # t(0.975, 1) s / sqrt(2)
  np.testing.assert_allclose(row.estimates["step"].mean, mean)
  np.testing.assert_allclose(row.estimates["step"].interval, (mean / ratio, mean * ratio))
  assert row.estimates["step"].seeds == {"seed 0": 20, "seed 1": 10}
  per_step = [row.estimates[name].mean / mean for name in ("examples", "bytes_sent", "seconds")]
  np.testing.assert_allclose(per_step, (128, 100, 0.5))
  accuracy, half = summary([0.96, 0.97])
  assert accuracy + half > 1
  np.testing.assert_allclose(row.estimates["test_accuracy"].interval, (accuracy - half, 1.0))


def test_a_seed_that_diverges_stops_or_is_missing_is_noted_and_not_averaged(tmp_path):
  good = rising(0.1, 0.5, 0.96, 0.97)
  broken = rising(0.1, 0.5, math.nan)
  folder = comparison(tmp_path, {"easgd": [good, broken, None, good[:2]]})
  row = rows_of(folder)["easgd"]
  assert (row.seeds, row.finished, row.reached) == (4, 1, 1)
  assert (
    row.estimates["test_accuracy"].mean == 0.97 and row.of_all("test_accuracy") is None and row.of_all("step") is None
  )
  assert row.notes == ["seed 2: no metrics", "seed 1 diverged at step 20", "seed 3 stopped at step 10"]
  assert "(97.00 %)" in page.table(folder) and "1/4 reached" in page.table(folder)
  assert "*" not in page.table(folder).splitlines()[2]


def test_all_seeds_of_one_algorithm_stop_early(tmp_path):
  whole, short = rising(0.1, 0.5, 0.96, 0.97), rising(0.1, 0.99)
  rows = rows_of(comparison(tmp_path, {"easgd": [short] * 2, "local_sgd": [whole] * 2}))
  assert (rows["easgd"].finished, rows["local_sgd"].finished) == (0, 2)


def test_runs_without_the_metric_of_the_target_are_noted(tmp_path):
  lines = [{name: line[name] for name in line if name != "test_accuracy"} for line in rising(0.1, 0.5)]
  assert rows_of(comparison(tmp_path, {"easgd": [lines]}))["easgd"].notes == ["seed 0 has no test accuracy"]


def test_one_evaluation_less_is_a_stop_beside_seeds_of_the_same_algorithm_only(tmp_path):
  whole = rising(0.1, 0.5, 0.96, 0.97, 0.97)
  # Rounds of 30 steps end at 30: less than a spacing from 40, and all that this algorithm can do.
  rounds = [line for line in rising(0.1, 0.5, 0.96, 0.97) if line["step"] in (0, 30)]
  rows = rows_of(comparison(tmp_path, {"easgd": [rounds] * 2, "local_sgd": [whole, whole[:4]]}))
  assert rows["easgd"].notes == [] and rows["local_sgd"].notes == ["seed 1 stopped at step 30"]


def test_a_training_loss_that_is_not_a_number_is_a_divergence(tmp_path):
  row = rows_of(comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96, train_loss=math.nan)]}))["easgd"]
  assert row.notes == ["seed 0 diverged at step 10"]


FAST, SLOW = (0.1, 0.95, 0.96, 0.96, 0.96), (0.1, 0.2, 0.3, 0.4, 0.95)
NEXT = (0.1, 0.2, 0.95, 0.96, 0.96)  # meets 0.95 at step 20 where FAST meets it at 10


@pytest.mark.parametrize(
  ("easgd", "local_sgd", "sooner", "rivals"),
  [
    ([SLOW] * 3, [FAST] * 3, "local_sgd", []),
    ([SLOW] * 3, [FAST, SLOW, SLOW], "local_sgd", ["easgd"]),
    ([FAST] * 3, [FAST] * 3, "easgd", ["local_sgd"]),
    ([NEXT] * 3, [FAST] * 3, "local_sgd", []),
  ],
)
def test_a_winner_is_named_only_where_the_next_is_significantly_worse(tmp_path, easgd, local_sgd, sooner, rivals):
  seeds = {"easgd": [rising(*each) for each in easgd], "local_sgd": [rising(*each) for each in local_sgd]}
  folder = comparison(tmp_path, seeds)
  for name in ("step", "examples", "bytes_sent", "seconds"):
    (first, _), found = ranked(folder, name)
    assert (first, found) == (sooner, rivals)
  for subject in ("Fewest examples to 95 %", "Soonest to 95 %"):
    assert ("not significantly different" in finding_of(folder)[subject]) == bool(rivals)
    assert finding_of(folder)[subject].startswith(f"{sooner} (") == (not rivals)
  named = {label for label in seeds if label in finding_of(folder)[""]}
  assert named == (set(seeds) if rivals else {sooner})
  marks = table.marks(list(rows_of(folder).values()), "step")
  assert marks == dict.fromkeys(rivals, "best" if easgd == local_sgd else "tied") | {sooner: "best"}
  for line in page.table(folder).splitlines()[2:4]:
    label, *cells = line.split()
    assert cells[4][-1] == {"best": "*", "tied": "~", None: "0"}[marks.get(label)]


def test_costs_of_one_curve_are_equal_however_often_it_is_evaluated(tmp_path):
  """Linear from 0.1 by 0.03 a step: the target is met at 28.33 steps."""
  often, seldom = rising(0.1, 0.4, 0.7, 1.0, 1.0), rising(0.1, 0.4, 0.7, 1.0, 1.0)
  del seldom[1:3]
  folder = comparison(tmp_path, {"easgd": [seldom] * 2, "local_sgd": [often] * 2})
  for name, per_step in (("step", 1), ("examples", 128), ("bytes_sent", 100), ("seconds", 0.5)):
    for row in rows_of(folder).values():
      np.testing.assert_allclose(list(row.estimates[name].seeds.values()), [per_step * 85 / 3] * 2, rtol=1e-12)
    assert ranked(folder, name)[1]  # not significantly different


def test_how_much_more_the_next_one_takes_is_the_ratio_that_was_tested(tmp_path):
  late = [rising(*[0.1] * number, *[0.95] * (8 - number)) for number in (4, 5, 6)]
  early = [rising(*[0.1] * number, *[0.96] * (8 - number)) for number in (2, 2, 3)]
  for lines, number in zip(early, (2, 2, 3), strict=True):
    lines[number]["test_accuracy"] = 0.95
  rows = rows_of(comparison(tmp_path, {"easgd": late, "local_sgd": early}))
  logs = np.log([40 / 20, 50 / 20, 60 / 30])
  mean, half = summary(logs)
  found = table.pairs(list(rows.values()), "examples")["easgd", "local_sgd"]
  assert found.ratio and found.sign == 1
  np.testing.assert_allclose((found.mean, *found.interval), np.exp([mean, mean - half, mean + half]))
  told = findings.versus(list(rows.values()), "examples", rows["easgd"], rows["local_sgd"])
  wanted = [f"{np.exp(value):.2f}" for value in (mean, mean - half, mean + half)]
  assert re.findall(r"[\d.]+", told)[:4] == [wanted[0], "95", *wanted[1:]]
  final = findings.versus(list(rows.values()), "test_accuracy", rows["easgd"], rows["local_sgd"])
  assert "1.00 points lower" in final


def test_findings_where_some_seeds_or_none_reach_the_target_and_for_one_seed(tmp_path):
  good, bad = rising(0.1, 0.5, 0.96), rising(0.1, 0.5, 0.6)
  some = comparison(tmp_path / "some", {"easgd": [good, bad], "local_sgd": [bad, bad]})
  assert ranked(some, "step") == ([], []) and ranked(some, "test_accuracy")[0] == ["easgd", "local_sgd"]
  assert "easgd (1 of 2)" in finding_of(some)[""]
  nobody = finding_of(comparison(tmp_path / "nobody", {"easgd": [bad] * 2}))
  assert set(nobody) == {""}
  one = comparison(tmp_path / "one", {"easgd": [good], "local_sgd": [rising(0.1, 0.96, 0.97)], "dasgd": []})
  assert list(finding_of(one))[:2] == ["", "One seed only"] and "dasgd" in finding_of(one)[""]
  assert rows_of(one)["easgd"].estimates["test_accuracy"].interval is None and "One seed" in page.table(one)


def test_algorithms_that_send_nothing_are_named_beside_the_bytes_and_not_drawn(tmp_path):
  silent = rising(0.1, 0.5, 0.96, bytes_sent=0)
  runs = {
    "independent": [silent] * 2,
    "easgd": [rising(0.1, 0.5, 0.96)] * 2,
    "local_sgd": [rising(0.1, 0.6, 0.7)] * 2,
  }
  folder = comparison(tmp_path, runs)
  chart = curve_data.chart(reader.read(folder), "bytes_sent", "test_accuracy")
  assert [line.label for line in chart.lines] == ["easgd", "local_sgd"]
  assert chart.absent.startswith("Sends nothing, so not on this axis: independent (ends at 96.00 %).")
  assert all((line.x > 0).all() for line in chart.lines)
  assert not any("Fewest bytes" in subject for subject in finding_of(folder))  # of one that sends any and gets there
  runs["local_sgd"] = [rising(0.1, 0.4, 0.96)] * 2
  told = finding_of(comparison(tmp_path / "two", runs))
  assert told["Fewest bytes per worker to 95 %, of those that send any"].startswith("easgd (1.98 kB); ")


def test_a_line_ends_with_its_first_seed_and_the_others_go_on_singly(tmp_path):
  whole = rising(0.1, 0.5, 0.9, 0.96)
  folder = comparison(tmp_path, {"easgd": [whole, rising(0.1, 0.4, math.nan), whole]})
  (line,) = curve_data.chart(reader.read(folder), "examples", "test_accuracy").lines
  np.testing.assert_array_equal(line.x, [0, 1280])
  np.testing.assert_allclose(line.mean, [0.1, 1.4 / 3])
  assert line.stopped == [("seed 1", (1280.0, 0.4))]
  (first, _), (third, curve) = line.rest
  assert (first, third) == ("seed 0", "seed 2")
  np.testing.assert_array_equal(curve, ([1280, 2560, 3840], [0.5, 0.9, 0.96]))


def test_the_table_fits_a_terminal(tmp_path):
  far = rising(0.1, 0.95, 0.97)
  for line in far:
    line.update({name: 1e7 * line[name] for name in ("step", "examples", "bytes_sent", "seconds")})
  label = "sharded_sync_sgd with a very long label, longer than any terminal is wide, " * 2
  text = page.table(comparison(tmp_path, {label: [far] * 3, "easgd": [far, far, rising(0.1)]}))
  assert max(len(line) for line in text.splitlines()) <= 100
  assert "sharded_syn" in text and "12,800 M" in text and "3/3 reached" in text
