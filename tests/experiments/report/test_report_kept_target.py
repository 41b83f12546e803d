"""A target that is met, and missed again at a later evaluation: marked, told of below the table, and in the files."""

import pandas as pd
from helpers.comparisons import comparison, rising, rows_of, undrawn_page

from ddl.report import page, statistics, table
from ddl.report.cells import column
from ddl.report.wording import AGAIN

# Of one seed of each the mean keeps 95 %: 96, then 95.5 %.
KEPT, LOST = rising(0.1, 0.5, 0.96, 0.97, 0.97), rising(0.1, 0.5, 0.96, 0.94, 0.97)


def test_what_is_marked(tmp_path):
  folder = comparison(tmp_path, {"easgd": [LOST, KEPT], "local_sgd": [KEPT] * 2, "dasgd": [LOST] * 2})
  rows = rows_of(folder)
  assert {label: row.fell_back for label, row in rows.items()} == {"easgd": 1, "local_sgd": 0, "dasgd": 2}
  for name in ("step", "examples", "bytes_sent", "seconds"):
    marked = [cell.text.endswith(table.FELL) for cell in column(list(rows.values()), name)]
    assert marked == [False, False, True]
  assert table.FELL not in str(column(list(rows.values()), "test_accuracy"))
  for text in (page.table(folder), undrawn_page(folder)):
    text = " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())
    assert f"{table.FELL} {AGAIN}: dasgd (2); in brackets" in text
  assert list(pd.read_csv(folder / "table.csv").fell_back) == [1, 0, 2]


def test_a_label_with_a_comma_is_quoted_without_its_number_of_seeds(tmp_path):
  folder = comparison(tmp_path, {"easgd": [KEPT] * 2, "dasgd, delay 2": [LOST] * 2})
  assert f'{AGAIN}: "dasgd, delay 2" (2); in' in " ".join(page.table(folder).replace("\N{NO-BREAK SPACE}", " ").split())


def test_the_mark_is_of_the_seeds_that_the_figure_is_of(tmp_path):
  """Of three seeds one never meets the target, so that the mean of all would not, or would alone."""
  never, low = rising(*[0.1] * 5), rising(0.1, 0.5, 0.94, 0.94, 0.94)
  high, late = rising(0.1, 0.5, 0.99, 0.951, 0.951), rising(0.1, 0.5, 0.93, 0.94, 0.96)
  folder = comparison(tmp_path, {"both": [LOST, LOST, never], "none": [high, high, low], "mean": [high, late]})
  rows = rows_of(folder)
  assert {label: (row.reached, row.fell_back) for label, row in rows.items()} == {
    "both": (2, 2), "none": (2, 0), "mean": (2, 0)
  }  # fmt: skip
  assert [cell.text.endswith(table.FELL) for cell in column(list(rows.values()), "step")] == [True, False, False]
  apart = [rising(0.1, 0.97, 0.94, 0.97, 0.97), rising(0.1, 0.5, 0.97, 0.97, 0.949)]  # each, and their mean does not
  assert rows_of(comparison(tmp_path / "apart", {"easgd": apart}))["easgd"].signs.endswith(table.FELL)


def test_a_target_that_is_kept_is_not_told_of(tmp_path):
  folder = comparison(tmp_path, {"easgd": [KEPT] * 2, "local_sgd": [KEPT] * 2})
  assert AGAIN not in page.table(folder) + undrawn_page(folder)


def test_a_loss_rises_above_its_target():
  steps, values = pd.Series(range(4)).to_numpy(), pd.Series([2.0, 0.9, 1.1, 0.8]).to_numpy()
  assert statistics.falls_back(steps, values, 1.0, higher_is_better=False)
  assert not statistics.falls_back(steps, values, 1.2, higher_is_better=False)
  assert not statistics.falls_back(steps, values, 0.5, higher_is_better=False)
