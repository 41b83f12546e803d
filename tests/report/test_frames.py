"""The frames of a comparison: runs, table and pairs; rankings, marks, and the files."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from helpers.comparisons import comparison, edited, finding_of, frames_of, meets_at, quantity, ranked, rising, table_of
from helpers.comparisons import undrawn_page as page_of
from scipy import stats

from ddl.report import frames, page, reader, sentences, tables
from ddl.report.statistics import summary

COSTS = ("step", "examples", "bytes_sent", "seconds")


def problems_of(folder):
  return frames_of(folder).runs.groupby("label", sort=False).problem.apply(list).to_dict()


def cells(folder, metric, **how):
  return tables.column(frames_of(folder), quantity(folder, metric), **how)


@pytest.fixture
def small(tmp_path):
  """Two labels meet the target at steps 20, 30, 50 and 10, 20, 30; one meets it with one seed of three."""
  runs = {"easgd": meets_at(2, 3, 5, end=7), "local_sgd": meets_at(1, 2, 3, end=7), "never": meets_at(4, 0, 0, end=7)}
  clock = [0.1 * number for number in range(7)]
  clusters = [{"name": "near", "algorithms": {label: {"seconds": [clock] * 3} for label in runs}}]
  return comparison(tmp_path, runs, clusters=clusters)


def test_costs_are_at_the_first_crossing_of_the_target(tmp_path):
  seeds = [rising(0.1, 0.5, 0.95, 0.2, 0.96), rising(0.1, 0.95, 0.5, 0.5, 0.97)]
  folder = comparison(tmp_path, {"local_sgd": seeds})
  row = table_of(folder).loc["local_sgd"]
  assert (row.seeds, row.finished, row.reached) == (2, 2, 2)
  mean, ratio = math.sqrt(20 * 10), math.exp(12.7062047361747 * math.log(20 / 10) / 2)  # t(0.975, 1) s / sqrt(2)
  shown = [row.step_to_target, row.step_to_target_low, row.step_to_target_high]
  np.testing.assert_allclose(shown, (mean, mean / ratio, mean * ratio))
  assert frames_of(folder).runs.step_to_target.tolist() == [20, 10]
  per_step = [row[f"{name}_to_target"] / mean for name in ("examples", "bytes_sent", "seconds")]
  np.testing.assert_allclose(per_step, (128, 100, 0.5))
  accuracy, half = summary([0.96, 0.97])
  assert accuracy + half > 1
  np.testing.assert_allclose([row.test_accuracy_low, row.test_accuracy_high], (accuracy - half, 1.0))


def test_incomplete_seeds_are_noted_and_excluded_from_means(tmp_path):
  good = rising(0.1, 0.5, 0.96, 0.97)
  folder = comparison(tmp_path, {"easgd": [good, rising(0.1, 0.5, math.nan), None, good[:2]]})
  row = table_of(folder).loc["easgd"]
  assert (row.seeds, row.finished, row.reached) == (4, 1, 1)
  assert row.test_accuracy == 0.97 and row.test_accuracy_mark == row.step_to_target_mark == "partial"
  problems = ["", "diverged at step 20", "has no metrics", "stopped at step 10"]
  assert problems_of(folder) == {"easgd": problems}
  assert all(text in " ".join(sentences.failures(frames_of(folder))) for text in problems)
  text = page.table(folder)
  assert "(97.00 %)" in text and "1/4 reached" in text and "*" not in text.splitlines()[2]


def test_runs_shorter_than_their_budget_are_incomplete_unless_they_stop_at_the_target(tmp_path):
  whole, short = rising(0.1, 0.5, 0.96, 0.97, 0.97), rising(0.1, 0.99)
  rounds = [line for line in rising(0.1, 0.5, 0.96, 0.97) if line["step"] in (0, 30)]  # rounds of 30 steps end at 30
  folder = comparison(tmp_path / "a", {"easgd": [rounds] * 2, "local_sgd": [whole, whole[:4]], "dasgd": [short] * 2})
  late, early = ["", "stopped at step 30"], ["stopped at step 10"] * 2
  assert problems_of(folder) == {"easgd": ["", ""], "local_sgd": late, "dasgd": early}
  blind = [{k: v for k, v in line.items() if k != "test_accuracy"} for line in rising(0.1, 0.5, 0.6)]
  odd = {"lost": [rising(0.1, 0.5, 0.96, train_loss=math.nan)], "blind": [blind]}
  wanted = {"lost": ["diverged at step 10"], "blind": ["has no test accuracy"]}
  assert problems_of(comparison(tmp_path / "b", odd)) == wanted
  runs = {"easgd": [rising(0.1, 0.96), rising(0.1, 0.5, 0.96)], "local_sgd": [rising(0.1, 0.5), rising(0.1, 0.5, 0.6)]}
  target = {"metric": "test_accuracy", "value": 0.95, "higher_is_better": True, "stop": True}
  folder = comparison(tmp_path / "c", runs, target=target)
  assert problems_of(folder) == {"easgd": ["", ""], "local_sgd": ["stopped at step 10", ""]}
  assert table_of(folder)[["finished", "reached"]].to_numpy().tolist() == [[2, 2], [1, 0]]


def test_costs_do_not_depend_on_the_evaluation_interval(tmp_path):
  """Accuracy rises from 0.1 by 0.03 per step and meets 0.95 at step 28.33."""
  often, seldom = rising(0.1, 0.4, 0.7, 1.0, 1.0), rising(0.1, 0.4, 0.7, 1.0, 1.0)
  del seldom[1:3]
  folder = comparison(tmp_path, {"easgd": [seldom] * 2, "local_sgd": [often] * 2})
  for name, per_step in (("step", 1), ("examples", 128), ("bytes_sent", 100), ("seconds", 0.5)):
    np.testing.assert_allclose(frames_of(folder).runs[f"{name}_to_target"], per_step * 85 / 3, rtol=1e-12)
    assert ranked(folder, name)[1]  # not significantly different


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
def test_a_winner_is_named_only_if_the_next_is_significantly_worse(tmp_path, easgd, local_sgd, sooner, rivals):
  seeds = {"easgd": [rising(*seed) for seed in easgd], "local_sgd": [rising(*seed) for seed in local_sgd]}
  folder = comparison(tmp_path, seeds)
  for name in COSTS:
    (first, _), result = ranked(folder, name)
    assert (first, result) == (sooner, rivals)
  for subject in ("Fewest examples to 95 %", "Fastest to 95 %"):
    assert finding_of(folder)[subject].startswith(f"{sooner} (") == (not rivals)
  marks = table_of(folder).step_to_target_mark.dropna().to_dict()
  assert marks == dict.fromkeys(rivals, "best" if easgd == local_sgd else "tied") | {sooner: "best"}
  for line in page.table(folder).splitlines()[2:4]:
    label, *texts = line.split()
    assert texts[4][-1] == {"best": "*", "tied": "~", None: "0"}[marks.get(label)]


def test_paired_seeds_can_differ_significantly_although_intervals_overlap(tmp_path):
  late = meets_at(4, 10, 19)
  folder = comparison(tmp_path, {"local_sgd": meets_at(2, 5, 10), "easgd": late, "dasgd": late[::-1]})
  table = table_of(folder)
  assert table.step_to_target_high["local_sgd"] > table.step_to_target["easgd"] > table.step_to_target_low["easgd"]
  # dasgd has the same figures for other seeds
  assert table.step_to_target_mark.dropna().to_dict() == {"local_sgd": "best", "dasgd": "tied"}
  assert ranked(folder, "examples") == (["local_sgd", "easgd", "dasgd"], ["dasgd"])
  # no label differs significantly from the best, which has a wide spread, but one rival beats the other
  seeds = {"wide": meets_at(1, 2, 12), "near": meets_at(6, 6, 6), "far": meets_at(8, 8, 8)}
  assert ranked(comparison(tmp_path / "wide", seeds), "examples") == (["wide", "near", "far"], ["near"])


def test_metrics_have_every_evaluation_and_the_table_has_geometric_means(small):
  result = frames.metrics_frame(reader.read(small))
  assert len(result) == 3 * 3 * 7
  unknown = {"virtual_seconds", "grad_norm2", "grad_noise", "noise_scale", "test_perplexity", "present"}  # in no run
  known = [name for name in reader.COLUMNS if name not in unknown]
  assert list(result.columns) == ["label", "seed", *known, "predicted_seconds_near"]
  assert result["step"].dtype == result["seed"].dtype == np.int64
  one = result[(result.label == "easgd") & (result.seed == 2)]
  np.testing.assert_allclose(one.test_accuracy, [0.1] * 5 + [0.95] * 2)
  np.testing.assert_allclose(one.bytes_sent, 100 * one.step)
  np.testing.assert_allclose(one.predicted_seconds_near, one.step / 100)
  assert one.train_loss.isna().tolist() == [True] + [False] * 6
  table = table_of(small)
  assert table.reached.tolist() == [3, 3, 1] and table.step_to_target_mark["never"] == "partial"
  assert math.isnan(table.step_to_target_low["never"])
  np.testing.assert_allclose(table.predicted_seconds_to_target_near, table.step_to_target / 100)
  for label, steps in {"easgd": (20, 30, 50), "local_sgd": (10, 20, 30)}.items():
    np.testing.assert_allclose(table.step_to_target[label], stats.gmean(steps))


def test_pairs_frame_against_scipy(small):
  frame = frames_of(small).pairs.set_index(["quantity", "first", "second"])
  assert len(frame) == 6 * 3 and set(frame.loc["predicted_seconds"].cluster) == {"near"}
  wanted = stats.ttest_rel(*np.log([[20, 30, 50], [10, 20, 30]]))
  low, high = np.exp(wanted.confidence_interval(0.95))
  for name in (*COSTS, "predicted_seconds"):
    line = frame.loc[(name, "easgd", "local_sgd")]
    result = line[["estimate", "low", "high", "p", "p_holm"]].astype(float)
    np.testing.assert_allclose(result, [5 ** (1 / 3), low, high, wanted.pvalue, wanted.pvalue], rtol=1e-9)
    assert (line.scale, line.seeds, line.missing_first, line.missing_second) == ("ratio", 3, 0, 0)
    unmet = frame.loc[(name, "easgd", "never")]
    assert (unmet.seeds, unmet.missing_first, unmet.missing_second) == (1, 0, 2)
    assert math.isnan(unmet.p) and unmet.significant is pd.NA and unmet.more_seeds is pd.NA
  score = frame.loc[("test_accuracy", "easgd", "local_sgd")]
  assert (score.scale, score.estimate, score.p, score.significant) == ("difference", 0.0, 1.0, False)
  result = frames_of(small)
  pairs = frames.both_orders(result, quantity(small, "step"))
  one, other = pairs.loc[("easgd", "local_sgd")], pairs.loc[("local_sgd", "easgd")]
  assert one["estimate"] == pytest.approx(1 / other["estimate"]) and one["low"] == pytest.approx(1 / other["high"])


def test_files_have_the_content_of_the_frames(realistic_page):
  folder = realistic_page.parent
  result, reported = frames_of(folder), json.loads((folder / "findings.json").read_text())
  created = {"table": result.table, "pairs": result.pairs, "metrics": frames.metrics_frame(result.comparison)}
  for name, frame in created.items():
    assert (folder / f"{name}.csv").read_text() == frame.to_csv(index=False)
  shown = {finding["subject"]: finding["text"] for finding in reported["findings"]}
  assert finding_of(folder).items() <= shown.items()
  assert reported["target"] == {"metric": "test_accuracy", "value": 0.95, "higher_is_better": True, "stop": False}
  for name in ("table", "pairs"):
    finite = created[name].replace([math.inf, -math.inf], math.nan)
    assert [list(line) for line in reported[name]] == [list(finite.columns)] * len(finite)
    for line, wanted in zip(reported[name], finite.to_dict("records"), strict=True):
      assert all(value is None if pd.isna(wanted[key]) else value == wanted[key] for key, value in line.items())


def test_frames_of_comparisons_without_results_or_with_one_seed(tmp_path):
  nothing = frames_of(comparison(tmp_path / "nothing", {"easgd": [], "local_sgd": [None]}))
  assert len(frames.metrics_frame(nothing.comparison)) == 0 and nothing.table.step_to_target.isna().all()
  assert (nothing.pairs.seeds == 0).all()
  one = frames_of(comparison(tmp_path / "one", {label: [rising(0.1, 0.96)] for label in ("easgd", "local_sgd")}))
  assert one.pairs.p.isna().all() and one.table.step_to_target_low.isna().all() and one.single
  single = frames_of(comparison(tmp_path / "single", {"easgd": [rising(0.1, 0.96)] * 2}))
  assert len(single.pairs) == 0 and "p_holm" in single.pairs
  assert not any(note in tables.text_table(single) for note in ("*:", "~:", "in brackets"))


def test_intervals_of_accuracies_are_clipped_but_not_of_differences(tmp_path):
  finals = {"easgd": (0.999, 0.97, 0.998), "local_sgd": (0.001, 0.02, 0.0)}
  folder = comparison(tmp_path, {label: [rising(0.1, 0.5, end) for end in finals[label]] for label in finals})
  for label, seeds in finals.items():
    mean, half = summary(seeds)
    assert mean - half < 0 or mean + half > 1
    ends = table_of(folder).loc[label, ["test_accuracy_low", "test_accuracy_high"]].tolist()
    assert ends == pytest.approx([max(0, mean - half), min(1, mean + half)])
  mean, half = summary(finals["easgd"])
  text = cells(folder, "test_accuracy")[0].text
  assert text == f"{100 * mean:.2f} ({100 * (mean - half):.2f} to 100.00) %" and text in page.table(folder)
  pair = frames.both_orders(frames_of(folder), quantity(folder, "test_accuracy")).loc[("easgd", "local_sgd")]
  assert pair["high"] > 1 and pair["high"] - pair["estimate"] == pytest.approx(pair["estimate"] - pair["low"])


def test_cells_have_intervals_of_costs_as_details_and_of_scores_in_the_text(tmp_path):
  """The target is met at steps 10, 30 and 60: Student's interval without logarithms would begin below 0."""
  folder = comparison(tmp_path, {"easgd": meets_at(1, 3, 6)})
  (cell,) = cells(folder, "step")
  ratio = math.exp(4.302652729911275 * np.std(np.log([10, 30, 60]), ddof=1) / math.sqrt(3))  # t(0.975, 2)
  mean = 18000 ** (1 / 3)
  assert cell.text == "26" and cell.details == (f"{mean / ratio:.0f} to {mean * ratio:.0f}",)
  (plain,), (score,) = cells(folder, "step", intervals=False), cells(folder, "test_accuracy")
  assert plain.details == score.details == () and score.text == "95.00 ± 0.00 %"


def test_a_target_reached_before_the_first_evaluation_is_marked(tmp_path):
  soon, late = rising(0.1, 0.96, 0.97, 0.97), rising(0.1, 0.5, 0.96, 0.97)
  folder = comparison(tmp_path, {"easgd": [soon] * 2, "local_sgd": [soon, late], "dasgd": [late] * 2})
  assert table_of(folder).early.tolist() == [2, 1, 0]
  for name in COSTS:
    assert [cell.text.endswith(sentences.EARLY) for cell in cells(folder, name)] == [True, True, False]
  assert not any(sentences.EARLY in cell.text for cell in cells(folder, "test_accuracy"))
  page.write_tables(folder)
  for text in (page.table(folder), (folder / "findings.json").read_text()):
    assert sentences.EARLY_TEXT in text and "local_sgd (1 of 2 seeds)" in " ".join(text.split())


def test_a_target_missed_again_by_most_seeds_that_met_it_is_marked(tmp_path):
  steady, lost, never = (rising(0.1, 0.5, *rest, 0.97) for rest in ((0.96, 0.97), (0.96, 0.94), (0.6, 0.6)))
  never[-1]["test_accuracy"] = 0.6
  runs = {"half": [lost, steady, never], "dasgd, delay 2": [lost, lost, steady], "one": [lost, never, never]}
  folder = comparison(tmp_path, runs | {"none": [steady] * 3})
  assert table_of(folder)[["reached", "fell_back"]].to_numpy().tolist() == [[2, 1], [3, 2], [1, 1], [3, 0]]
  for name in COSTS:
    assert [cell.text.endswith(sentences.FELL) for cell in cells(folder, name)] == [False, True, True, False]
  text = " ".join(page.table(folder).split())
  assert f'{sentences.FELL_TEXT}: "dasgd, delay 2" (2 of 3 seeds) and one (1 of 3 seeds);' in text
  assert sentences.FELL_TEXT in page_of(folder)


def test_labels_are_ranked_and_tested_on_common_seeds(tmp_path):
  """Label a is the fastest over the three common seeds, but not over its five."""
  runs = {"a": meets_at(4, 6, 5, 19, 19), "b": meets_at(6, 9, 7), "c": meets_at(8, 12, 10)}
  longer = comparison(tmp_path, runs)
  result = frames_of(longer)
  assert result.comparison.info["seeds"] == [0, 1, 2] and result.comparison.whole is not None
  assert result.table.seeds.tolist() == [3, 3, 3] and ranked(longer, "examples")[0] == ["a", "b", "c"]
  same = table_of(comparison(longer / "same", {"a": meets_at(4, 6, 5), "b": meets_at(6, 9, 7)}))
  assert table_of(longer).step_to_target["a"] == same.step_to_target["a"]
  reported = finding_of(longer)[sentences.DIFFERENT_SEEDS]
  assert reported.startswith("a: seeds 0, 1, 2, 3 and 4; b and c: seeds 0, 1 and 2; ")
  assert f"`python run.py compare --resume --workdir={longer} --config.compare.seeds=0,1,2,3,4`" in reported
  head, _, *lines = page.table(longer).splitlines()
  assert "seeds run" in head and [line.split()[1] for line in lines[:3]] == ["5", "3", "3"]
  assert "400 steps, 3 seeds.<" in page_of(longer)
  assert len(set(frames.metrics_frame(result.comparison).query("label == 'a'").seed)) == 5  # all seeds of a
  assert sentences.DIFFERENT_SEEDS not in finding_of(longer / "same") and reader.read(longer / "same").whole is None


def test_without_a_common_seed_nothing_is_ranked(tmp_path):
  folder = comparison(tmp_path, {"a": meets_at(4, 6), "b": meets_at(6, 9)})
  with edited(folder) as info:
    info["algorithms"][1]["runs"] = ["b/seed-7", "b/seed-8"]
  for seed in (0, 1):
    (folder / f"b/seed-{seed}").rename(folder / f"b/seed-{seed + 7}")
  assert reader.read(folder).disjoint and ranked(folder, "step") == ([], [])
  assert table_of(folder).test_accuracy_mark.isna().all()
  assert "--config.compare.seeds=0,1,7,8" in finding_of(folder)[sentences.DIFFERENT_SEEDS]
  assert "no seed is common to all" in page_of(folder) and page.table(folder)


def test_pairs_are_tested_only_if_both_labels_have_a_value_for_every_seed(tmp_path):
  """In the two seeds with both values, a and c would differ significantly."""
  evaluations = {"a": (2, 4, 3), "b": (2, 3, 3), "c": (4, 8, 0), "d": (4, 0, 6)}
  folder = comparison(tmp_path, {label: meets_at(*seeds) for label, seeds in evaluations.items()})
  lines = frames.of_quantity(frames_of(folder).pairs, quantity(folder, "bytes_sent")).set_index(["first", "second"])
  assert lines.index[lines.p.notna()].tolist() == [("a", "b")] and lines.p["a", "b"] == lines.p_holm["a", "b"]
  described = lines.loc[("a", "c")]
  assert described.seeds == 2 and described.estimate == pytest.approx(0.5, rel=0.1)
  empty = ("low", "high", "p", "p_holm", "significant", "more_seeds")
  assert all(pd.isna(described[name]) for name in empty)
