"""The page's section of all pairs."""

import numpy as np
import pytest
from helpers.comparisons import Tags, comparison, rising

from ddl.report import frames, pair_table, reader, table
from ddl.report import page as report
from ddl.report.figures import curves


def tables_of(folder):
  found = reader.read(folder)
  return {each.title: each for each in pair_table.tables(found, table.rows(found))}


def at(*numbers, end=40):
  """Seeds that meet the target of 95 % at these evaluations."""
  return [rising(*[0.1] * number, *[0.95] * (end - number)) for number in numbers]


def test_pairs_are_oriented_upward_and_sorted_by_their_p(tmp_path):
  folder = comparison(tmp_path, {"easgd": at(4, 10, 21), "local_sgd": at(2, 5, 10), "dasgd": at(12, 3, 9)})
  steps = tables_of(folder)["steps to 95 %"]
  assert steps.labels[0] == "easgd ÷ local_sgd" and set(steps.labels[1:]) == {"easgd ÷ dasgd", "dasgd ÷ local_sgd"}
  cells = {head: [cell.text for cell in column] for head, column in steps.columns.items()}
  assert cells["ratio"][0] == "2.03" and all(float(ratio) >= 1 for ratio in cells["ratio"])
  found = frames.pairs_frame(reader.read(folder))
  of_steps = found[found.quantity == "step"].sort_values("p")
  assert cells["more seeds"] == ["separate", *(str(more) for more in of_steps.more_seeds[1:])]
  assert [cell.kind for cell in steps.columns["p after Holm"]] == ["best", "", ""]
  assert steps.left_out == 0 and steps.summary.startswith("1 of 3 ")


def test_seeds_that_never_met_the_target_are_told(tmp_path):
  never = rising(*[0.1] * 40)
  folder = comparison(tmp_path, {"easgd": at(4, 10, 21), "some": [*at(5), never, never], "none": [never] * 3})
  found = tables_of(folder)["bytes per worker to 95 %"]
  assert all(cell.kind == "partial" for cell in found.columns["p after Holm"]) and found.summary.startswith("0 of 0 ")
  told = dict(zip(found.labels, found.columns["seeds"], strict=True))
  pairs = {
    frozenset(label.split(f" {pair_table.DIVIDED} ")): (cell.text, len(cell.details)) for label, cell in told.items()
  }
  assert pairs == {
    frozenset({"easgd", "some"}): ("1/3", 1), frozenset({"easgd", "none"}): ("0/3", 1),
    frozenset({"some", "none"}): ("0/3", 2),
  }  # fmt: skip


@pytest.mark.parametrize(("labels", "shown"), [(1, 0), (4, 6), (12, 66), pytest.param(40, 100, marks=pytest.mark.slow)])
def test_the_section_has_all_pairs_or_says_how_many_more_there_are(tmp_path, monkeypatch, labels, shown):
  monkeypatch.setattr(curves, "pictures", lambda comparison: [])
  rng = np.random.default_rng(0)
  runs = {f"label {number}": at(*rng.integers(2, 12, 3), end=13) for number in range(labels)}
  folder = comparison(tmp_path, runs)
  page = Tags(report.write_report(folder).read_text())
  assert not page.open
  tables = tables_of(folder)
  assert {len(each.labels) for each in tables.values()} == ({shown} if shown else set())
  assert {each.left_out for each in tables.values()} == ({labels * (labels - 1) // 2 - shown} if shown else set())
  assert sum(tag == "details" for tag, _ in page.found) == 1 + len(tables)
  assert (("code", {}) in page.found) == bool(shown)


def test_one_seed_has_no_section(tmp_path):
  assert tables_of(comparison(tmp_path, {"easgd": at(4), "local_sgd": at(2)})) == {}
