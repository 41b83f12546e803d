"""Which seeds a report compares: those that all labels have, and tests of labels that have a figure of each."""

import json

import pandas as pd
import pytest
from helpers.comparisons import comparison, finding_of, ranked, rising, rows_of, undrawn_page

from ddl.report import clusters, findings, frames, pair_table, reader
from ddl.report import page as report
from ddl.report import table as table_rows
from ddl.report.cells import column
from ddl.report.seeds import APART

NEVER = rising(*[0.1] * 20)


def meets_at(*evaluations):
  """A seed for each: the target is met at that evaluation; 0: never."""
  return [rising(*[0.1] * number, *[0.95] * (20 - number)) if number else NEVER for number in evaluations]


@pytest.fixture
def longer(tmp_path):
  """Label a is ahead in the three seeds that all have, and behind by the mean over its five."""
  return comparison(tmp_path, {"a": meets_at(4, 6, 5, 19, 19), "b": meets_at(6, 9, 7), "c": meets_at(8, 12, 10)})


def test_labels_are_ranked_and_tested_on_the_seeds_that_all_have(longer):
  found = reader.read(longer)
  assert found.info["seeds"] == [0, 1, 2] and found.whole is not None
  rows = rows_of(longer)
  assert {label: (row.seeds, len(row.estimates["step"].seeds)) for label, row in rows.items()} == {
    label: (3, 3) for label in "abc"
  }
  assert ranked(longer, "examples")[0] == ["a", "b", "c"]
  alone = rows_of(comparison(longer / "same", {"a": meets_at(4, 6, 5), "b": meets_at(6, 9, 7)}))
  assert rows["a"].estimates == alone["a"].estimates
  assert "a (" in finding_of(longer)["Fewest examples to 95 %"].partition(";")[0]


def test_own_seeds_are_shown_and_how_to_train_those_that_are_missing(longer):
  told = finding_of(longer)[APART]
  assert told.startswith("a: seeds 0, 1, 2, 3 and 4; b and c: seeds 0, 1 and 2; ")
  assert f"`python run.py compare --resume --workdir={longer} --config.compare.seeds=0,1,2,3,4`" in told
  page, text = undrawn_page(longer).replace("\N{NO-BREAK SPACE}", " "), report.table(longer)
  assert "the 3 seeds that all have, of up to 5." in page and "5 seeds." not in page
  head, _, *lines = text.splitlines()
  assert "own seeds" in head and APART in text
  assert [line.split()[1] for line in lines[:3]] == ["5", "3", "3"]
  assert len(set(frames.metrics_frame(reader.read(longer)).query("label == 'a'").seed)) == 5  # all that there is
  same = comparison(longer / "same", {"a": meets_at(4, 6, 5), "b": meets_at(6, 9, 7)})
  assert APART not in finding_of(same) and "own seeds" not in report.table(same) and reader.read(same).whole is None


def test_without_a_common_seed_nothing_is_ranked(tmp_path):
  folder = comparison(tmp_path, {"a": meets_at(4, 6), "b": meets_at(6, 9)})
  info = json.loads((folder / "comparison.json").read_text())
  for number, run in enumerate(info["algorithms"][1]["runs"]):
    (folder / run).rename(folder / f"b/seed-{number + 7}")
  info["algorithms"][1]["runs"] = ["b/seed-7", "b/seed-8"]
  (folder / "comparison.json").write_text(json.dumps(info))
  found = reader.read(folder)
  table = table_rows.rows(found)
  assert found.disjoint and findings.headline(table, found) == findings.UNRANKED
  assert table_rows.ranking(table, "step").ranked == [] and table_rows.marks(table, "test_accuracy") == {}
  assert "--config.compare.seeds=0,1,7,8" in finding_of(folder)[APART]
  page = undrawn_page(folder).replace("\N{NO-BREAK SPACE}", " ")
  assert "2 seeds, none common to all." in page and report.table(folder)


def test_a_pair_is_tested_only_where_both_have_a_figure_of_every_seed(tmp_path):
  """By the two seeds in which both met the target, the pair of a and c would be significantly different."""
  runs = {"a": meets_at(2, 4, 3), "b": meets_at(2, 3, 3), "c": meets_at(4, 8, 0), "d": meets_at(4, 0, 6)}
  folder = comparison(tmp_path, runs)
  found = reader.read(folder)
  table = table_rows.rows(found)
  family = table_rows.pairs(table, "bytes_sent")
  tested = {pair for pair, each in family.items() if each.p is not None}
  assert tested == {("a", "b"), ("b", "a")} and family["a", "b"].p == family["a", "b"].p_holm
  described = family["c", "a"]
  assert (described.seeds, described.sign, described.interval, described.effect) == (2, 0, None, None)
  assert described.more_seeds is None and described.mean == pytest.approx(2, rel=0.1)
  (of_bytes,) = [each for each in pair_table.tables(found, table) if each.title.startswith("bytes")]
  assert of_bytes.summary.endswith(" of 1 tested pairs significantly different")
  frame = frames.pairs_frame(found).query("quantity == 'bytes_sent' and second == 'c' and first == 'a'").iloc[0]
  assert frame.seeds == 2 and frame.estimate == pytest.approx(1 / described.mean)
  assert all(pd.isna(frame[name]) for name in ("low", "high", "p", "p_holm", "significant", "effect_size"))


def test_a_diverged_seed_takes_its_label_out_of_the_tests_too(tmp_path):
  broken = rising(0.1, 0.2, 0.3)
  broken[-1]["train_loss"] = float("nan")
  good = [rising(0.1, 0.5, 0.9 + 0.01 * n) for n in range(3)]
  folder = comparison(tmp_path, {"a": good, "b": [rising(0.1, 0.4, 0.8 + 0.02 * n) for n in range(3)], "c": [
    *[rising(0.1, 0.3, 0.5 + 0.01 * n) for n in range(2)], broken]})  # fmt: skip
  family = table_rows.pairs(list(rows_of(folder).values()), "test_accuracy")
  assert family["a", "b"].p is not None and family["a", "c"].p is None and family["a", "c"].seeds == 2


def test_one_and_the_same_run_is_no_test_and_a_tie_at_the_end_is_one(tmp_path):
  seeds = [rising(0.1, 0.5, 0.9 + 0.01 * n, 0.96) for n in range(3)]
  other = [rising(0.1, 0.4, 0.91 + 0.01 * n, 0.96) for n in range(3)]
  folder = comparison(tmp_path, {"a": seeds, "twin": seeds, "b": other})
  rows = rows_of(folder)
  assert [rows[label].same for label in ("a", "twin", "b")] == ["a", "a", "b"]
  family = table_rows.pairs(list(rows.values()), "test_accuracy")
  assert family["a", "twin"].p is None and family["a", "b"].p == 1.0  # equal at the end, by chance
  steps = table_rows.pairs(list(rows.values()), "step")
  assert steps["a", "b"].p_holm == pytest.approx(min(1, 2 * steps["a", "b"].p))  # two tests, not three
  assert set(table_rows.marks(list(rows.values()), "step").values()) == {"best", "tied"}
  assert "so that no test is between them: a and twin." in " ".join(report.table(folder).split())


@pytest.mark.parametrize(("met", "marked"), [(2, {}), (3, {"a": "best", "b": "best"})])
def test_one_ranked_label_is_no_best(tmp_path, met, marked):
  runs = {"a": meets_at(9, 9, 9), "b": meets_at(*[9] * met, *[0] * (3 - met))}
  table = list(rows_of(comparison(tmp_path, runs)).values())
  assert table_rows.marks(table, "step") == marked
  assert [cell.kind for cell in column(table, "step")] == (["best"] * 2 if marked else ["", "partial"])


def on_cluster(folder, runs):
  """The sentence on a cluster whose steps take a millisecond."""
  comparison(folder, runs)
  info = json.loads((folder / "comparison.json").read_text())
  clock = [1e-3 * line["step"] for line in NEVER]
  info["clusters"] = [
    {"name": "near", "bandwidth": 1e9, "link": "between nodes",
     "break_even": {"winner": "sync", "crossings": [], "searched": [1.0, 2.0],
                    "ends": [{"ratio": 1, "first": "sync", "second": "slow"}] * 2},
     "algorithms": {label: {"seconds": [clock] * len(each)} for label, each in runs.items()}}
  ]  # fmt: skip
  (folder / "comparison.json").write_text(json.dumps(info))
  (found,) = clusters.on_clusters(reader.read(folder))
  return found.sentence.partition(": ")[2]


def test_a_cluster_names_no_first_where_others_are_sooner_in_some_seeds(tmp_path):
  runs = {"sync": meets_at(*[17] * 5), "local": meets_at(4, 4, 4, 0, 0), "late": meets_at(0, 0, 0, 0, 19)}
  told = on_cluster(tmp_path / "one", runs)
  assert told.startswith("only sync reaches 95 % with every seed, after 170 ms; local does in 3 of 5 seeds, 4.2 times ")
  assert "sooner" in told and "late does in 1 of 5 seeds, 1.1 times later" in told and "first" not in told
  told = on_cluster(tmp_path / "two", runs | {"slow": meets_at(*[19] * 5)})
  assert told.startswith("of the 2 that reach 95 % with every seed, sync does first") and "; local does in 3 of" in told
  told = on_cluster(tmp_path / "none", {"sync": runs["sync"], "never": meets_at(*[0] * 5)})
  assert told == "only sync reaches 95 % with every seed, after 170 ms."


def test_clusters_have_seconds_of_the_seeds_that_all_have(tmp_path):
  assert on_cluster(tmp_path / "all", {"sync": meets_at(*[9] * 4), "slow": meets_at(*[12] * 2)}).startswith("sync ")
  info = json.loads((tmp_path / "all/comparison.json").read_text())
  info["clusters"][0]["algorithms"]["sync"]["seconds"] = info["clusters"][0]["algorithms"]["sync"]["seconds"][:2]
  (tmp_path / "all/comparison.json").write_text(json.dumps(info))
  frame = frames.metrics_frame(reader.read(tmp_path / "all"))
  assert frame.query("seed > 1").predicted_seconds_near.isna().all()
  assert frame.query("seed < 2").predicted_seconds_near.notna().all()
