"""The first sentence of a report: whom it names, with one algorithm and with forty, and how long it is."""

import re

import numpy as np
import pytest
from helpers.comparisons import ALGORITHMS, comparison, metrics, ranked, realistic, rising

from ddl.report import findings, formats, reader
from ddl.report import table as table_rows


def told(folder):
  """The sentence's parts between semicolons."""
  found = reader.read(folder)
  return findings.headline(table_rows.rows(found), found).strip(".").split("; ")


def meets_at(*steps, **columns):
  return [rising(*[0.1] * step, *[0.96] * (12 - step), **columns) for step in steps]


def test_the_cheapest_are_named_with_those_that_never_get_there(tmp_path):
  soon, late = meets_at(2, 3, 2), meets_at(6, 9, 6)
  frugal = [[line | {"bytes_sent": line["bytes_sent"] / 100} for line in seed] for seed in late]
  bad = [rising(*[0.1] * 12)] * 3
  runs = {"sync_sgd": meets_at(8, 11, 8), "local_sgd": soon, "easgd": frugal, "independent": bad}
  first, second, never = told(comparison(tmp_path, runs))
  assert first.startswith("local_sgd ") and "95 %" in first and "easgd" not in first
  assert second.startswith("easgd ") and "bytes" in second and "local_sgd" not in second
  assert never.startswith("independent ")


def test_a_saving_is_that_of_the_tested_ratio_to_synchronous_sgd(tmp_path):
  runs = {"sync_sgd": meets_at(8, 11, 8), "local_sgd": meets_at(6, 8, 6), "easgd": meets_at(9, 12, 9)}
  folder = comparison(tmp_path, runs)
  found = reader.read(folder)
  table = table_rows.rows(found)
  ratio = table_rows.pairs(table, "examples")["local_sgd", "sync_sgd"]
  assert ratio.sign == -1 and f"{100 * (1 - ratio.mean):.0f} % fewer than sync_sgd" in told(folder)[0]
  assert "than" not in told(comparison(tmp_path / "none", {k: runs[k] for k in ("local_sgd", "easgd")}))[0]


@pytest.mark.parametrize("several", [2, 5])
def test_without_a_significant_difference_nobody_is_ahead(tmp_path, several):
  labels = ("easgd", "local_sgd", "dasgd", "slowmo", "cocod")[:several]
  (only,) = told(comparison(tmp_path, {label: meets_at(4, 5, 6) for label in labels}))
  assert all(word in only for word in ("examples", "bytes", "measured time"))
  assert [label for label in labels if label in only] == (list(labels) if several <= findings.FEW else [])


def test_one_algorithm_one_of_several_and_none(tmp_path):
  good, bad = meets_at(4, 5), [rising(*[0.1] * 12)] * 2
  (one,) = told(comparison(tmp_path / "one", {"easgd": good}))
  (among,) = told(comparison(tmp_path / "among", {"easgd": good, "local_sgd": bad}))
  (none,) = told(comparison(tmp_path / "none", {"easgd": bad, "local_sgd": bad}))
  assert one.startswith("easgd ") and among.lower().startswith("only easgd ") and "easgd" not in none


def test_algorithms_that_send_nothing_do_not_win_in_bytes(tmp_path):
  runs = {"independent": meets_at(2, 3, 2, bytes_sent=0), "easgd": meets_at(6, 9, 6), "local_sgd": meets_at(8, 11, 8)}
  folder = comparison(tmp_path, runs)
  (sent,) = [clause for clause in told(folder) if "bytes" in clause]
  assert sent.startswith("easgd ") and "send" in sent
  assert table_rows.marks(table_rows.rows(reader.read(folder)), "bytes_sent")["easgd"] == "best"
  assert "independent" not in table_rows.marks(table_rows.rows(reader.read(folder)), "bytes_sent")


@pytest.mark.parametrize("count", [1, 2, 4, 12, 40])
@pytest.mark.parametrize("seeds", [1, 5])
def test_it_stays_short_and_names_whom_the_tests_name(tmp_path, count, seeds):
  rng = np.random.default_rng(count)
  runs = {
    f"alg{number}": [metrics(rng, 1, rate, final, 4e4 / 2 ** (number % 9)) for _ in range(seeds)]
    for number in range(count)
    for rate, final in [(0.012 + 0.02 * rng.random(), 0.93 + 0.045 * rng.random())]
  }
  folder = comparison(tmp_path, runs)
  clauses = told(folder)
  assert len(" ".join(clauses).split()) <= findings.WORDS and ("one seed" in clauses[0]) == (seeds == 1)
  complete = [row for row in table_rows.rows(reader.read(folder)) if row.reached == row.seeds]
  if len(complete) > 1:
    for name, word in (("examples", "fewest examples"), ("bytes_sent", "fewest bytes")):
      first, rivals = ranked(folder, name)
      for clause in clauses:
        if word in clause:
          assert set(re.findall(r"alg\d+", clause)) == {first[0], *rivals}


def test_a_diverged_seed_is_no_best(tmp_path):
  folder = realistic(tmp_path)
  assert not any("dasgd d=4" in clause for clause in told(folder))
  assert (
    set(ALGORITHMS) >= {"easgd", "independent"} and "easgd" in told(folder)[-1] and "independent" in told(folder)[-1]
  )


def test_a_list_quotes_labels_that_would_look_like_two():
  assert formats.listed(["a (8,528)", "b"]) == "a (8,528) and b"
  assert formats.listed(["a, b", "c", "d"]) == '"a, b", c and d'
