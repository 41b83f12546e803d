"""The findings of a report: the labels that they name, their number, and expected orderings."""

import re

import numpy as np
import pytest
from helpers.comparisons import comparison, finding_of, frames_of, meets_at, metrics, ranked, rising

from ddl.report import formats, frames, sentences


def test_findings_compare_the_best_to_synchronous_sgd(tmp_path):
  frugal = [[line | {"bytes_sent": line["bytes_sent"] / 100} for line in seed] for seed in meets_at(6, 9, 6)]
  runs = {"sync_sgd": meets_at(8, 11, 8), "local_sgd": meets_at(2, 3, 2), "easgd": frugal}
  folder = comparison(tmp_path, runs | {"independent": meets_at(12, 13, 12, bytes_sent=0)})
  result, reported = frames_of(folder), finding_of(folder)
  fewest = "Fewest bytes per worker to 95 % among those that send any"
  claims = ("Fewest examples to 95 %", fewest, "Fastest to 95 %")
  winners = ("local_sgd", "easgd", "local_sgd")
  for claim, label, quantity in zip(claims, winners, frames.costs(result.comparison)[1:], strict=True):
    pair = frames.both_orders(result, quantity).loc[(label, "sync_sgd")]
    times = formats.estimate("", "ratio", 1 / pair["estimate"])
    assert pair["significant"] and reported[claim].startswith(f"{label} (")
    assert f"sync_sgd takes {times} times" in reported[claim] and "not significant" not in reported[claim]
  assert "independent" not in ranked(folder, "bytes_sent")[0]


def test_findings_have_the_tested_ratio_of_the_next_label(tmp_path):
  early = [rising(*[0.1] * number, *[0.99] * (8 - number)) for number in (2, 2, 3)]
  folder = comparison(tmp_path, {"easgd": meets_at(4, 5, 6, end=8), "local_sgd": early})
  pair = frames.both_orders(frames_of(folder), frames.quantity("examples")).loc[("easgd", "local_sgd")]
  reported = finding_of(folder)["Fewest examples to 95 %"]
  assert [f"{pair[name]:.2f}" for name in ("estimate", "low", "high")] == re.findall(r"\d\.\d\d", reported)
  assert "4.00 points lower" in finding_of(folder)["Highest final test accuracy"]


@pytest.mark.parametrize(("count", "seeds"), [(1, 5), (2, 1), (2, 5), (4, 5), (14, 1), (14, 5)])
def test_at_most_five_findings_name_the_best_labels_by_the_tests(tmp_path, count, seeds):
  rng = np.random.default_rng(count)
  runs = {}
  for number in range(count):
    rate, final, nbytes = 0.012 + 0.02 * rng.random(), 0.93 + 0.045 * rng.random(), 4e4 / 2 ** (number % 9)
    runs[f"alg{number}"] = [metrics(rng, 1, rate, final, nbytes) for _ in range(seeds)]
  folder = comparison(tmp_path, runs)
  result = frames_of(folder)
  reported = dict(sentences.findings(result))
  assert 1 <= len(reported) <= 5 and all(len(text.split()) <= 60 for text in reported.values())
  assert ("One seed only" in reported) == (seeds == 1 < count)
  for metric, word in (("examples", "Fewest examples"), ("bytes_sent", "Fewest bytes"), ("test_accuracy", "Highest")):
    for claim, text in reported.items():
      if claim.startswith(word):
        first, rivals = ranked(folder, metric)
        named = re.findall(r"alg\d+(?= \()", text)
        best = [first[0], *rivals]
        clear = len(best) == 1 or (len(best) <= sentences.FEW and len(best) < len(first))
        assert named == best[: sentences.FEW] and ("no clear winner" in text) != clear


def test_targets_reached_with_some_seeds_or_none(tmp_path):
  good, bad = rising(0.1, 0.5, 0.96), rising(0.1, 0.5, 0.6)
  some = comparison(tmp_path / "some", {"easgd": [good, bad], "local_sgd": [bad, bad]})
  assert "easgd (1 of 2)" in finding_of(some)["95 % test accuracy"] and ranked(some, "step") == ([], [])
  assert ranked(some, "test_accuracy")[0] == ["easgd", "local_sgd"]
  nobody = finding_of(comparison(tmp_path / "nobody", {"easgd": [bad] * 2}))
  assert "easgd" not in nobody["95 % test accuracy"]
  only = finding_of(comparison(tmp_path / "only", {"easgd": [good] * 2, "local_sgd": [bad] * 2}))
  assert only["Fewest examples to 95 %"].startswith("easgd (") and "no other" in only["Fewest examples to 95 %"]
  assert "No algorithm has a result." in finding_of(comparison(tmp_path / "none", {"easgd": [None]})).values()


def test_the_fewest_additional_seeds_are_named(tmp_path):
  runs = {"a": meets_at(4, 8, 6), "b": meets_at(9, 10, 7), "c": meets_at(5, 8, 6)}
  folder = comparison(tmp_path, runs)
  pairs = frames_of(folder).pairs
  least = pairs[pairs.quantity.isin(["test_accuracy", "examples", "bytes_sent", "seconds"])].more_seeds.min()
  assert f"{least} more seed" in finding_of(folder)["Pairs without a significant difference"]


def test_expected_orderings_are_counted(tmp_path):
  runs = {"a": meets_at(2, 3, 2), "b": meets_at(6, 9, 6), "c": meets_at(6, 8, 7), "never": meets_at(0, 0, 0)}
  expected = [("a", "b"), ("b", "a"), ("a", "never"), ("b", "c"), ("a", "missing")]
  folder = comparison(tmp_path, runs, expected=expected)
  result = frames_of(folder)
  verdicts = [sentences.order(result, *pair) for pair in expected]
  assert verdicts == [-1, 1, -1, 0, 0]
  assert [sentences.order(result, *pair[::-1]) for pair in expected] == [1, -1, 1, 0, 0]
  ((subject, text),) = sentences.expected(result)
  assert subject.startswith("2 of 5 ")
  orders = ["a before b and a before never", "b before a", "b before c and a before missing"]
  assert [part.rpartition(": ")[2] for part in text.strip(".").split("; ")] == orders
  assert sentences.expected(frames_of(comparison(tmp_path / "none", runs))) == []


def test_lists_quote_labels_with_commas():
  assert formats.listed(["a (8,528)", "b"]) == "a (8,528) and b"
  assert formats.listed(["a, b", "c", "d"]) == '"a, b", c and d'
