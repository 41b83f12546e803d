"""Predictions of `compare --cluster`: break-even bandwidths and means over seeds."""

import math

import numpy as np
import pytest
from helpers.cluster_configs import NBYTES, WORK, config_of

from ddl.comparison import predict
from ddl.costs import cluster_clock
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.perf.cluster_file import named


def entrant(config, seeds, steps, hits):
  algorithm = config.make_algorithm()
  pattern = pattern_of(algorithm, vector(NBYTES), config.workers)
  return predict.Entrant(config, algorithm, pattern, seeds, steps, hits)


def test_the_break_even_of_each_seed_equals_the_solution_by_hand():
  """For h steps with period 1 and m with period 4: h (s + T) = m s + m / 4 T, so T = (m - h) / (h - m / 4) s."""
  cluster = named("ethernet_10g")
  cluster = cluster._replace(network=cluster.network._replace(between=cluster.network.between._replace(latency=0.0)))
  entrants, hits = {}, {"often": (20, 24), "seldom": (32, 36)}
  for label, settings in (("often", {"period": 1}), ("seldom", {"period": 4})):
    config = config_of("local_sgd", **settings)
    steps = [np.array([0, hit, 100]) for hit in hits[label]]  # of the evaluations
    entrants[label] = entrant(config, [0, 1], steps, list(hits[label]))
  step = cluster_clock.on(entrants["often"].experiment, entrants["often"].pattern, cluster, WORK).config
  expected = [
    2 * 3 / 4 * NBYTES / ((m - h) / (h - m / 4) * step.times.seconds) for h, m in zip(*hits.values(), strict=True)
  ]
  assert max(expected) < cluster.network.between.bandwidth  # below both bandwidths, the second label is faster
  result = predict.break_even(cluster, 4, entrants, WORK)
  (crossing,) = result["crossings"]
  assert crossing["other"] == "seldom" and crossing["bandwidths"] == pytest.approx(expected, rel=2e-3)
  assert min(expected) < crossing["mean"] < max(expected)
  assert [end["first"] for end in result["ends"]] == ["seldom", "often"]
  between = cluster.with_bandwidth(4, math.sqrt(crossing["mean"] * max(expected)))
  (crossing,) = predict.break_even(between, 4, entrants, WORK)["crossings"]
  assert crossing["bandwidths"] == pytest.approx(expected, rel=2e-3)  # though the order of one seed differs
  assert predict.break_even(cluster, 4, {"often": entrants["often"]}, WORK) is None
  at_once = entrants | {"often": entrants["often"]._replace(hits=[0.0, 24])}  # reached by the untrained model of a seed
  assert predict.break_even(cluster, 4, at_once, WORK) is None


@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd"])
def test_the_seconds_of_a_step_are_a_mean_over_seeds(name):
  config, cluster = config_of(name), named("ethernet_10g")
  config = config.changed({"times": {"name": "lognormal", "jitter": 0.5}})
  results = []
  for seeds in ([0], [1], [0, 1]):
    entrants = {"a": entrant(config, seeds, [np.array([40])] * len(seeds), [20] * len(seeds))}
    figures = predict.entry("c", cluster, entrants, WORK, NBYTES)["algorithms"]["a"]
    results.append([figures["seconds_per_step"], *figures.get("staleness", {}).values()])
  assert len(results[0]) == (3 if name == "async_sgd" else 1) and results[0][0] != results[1][0]
  assert results[2] == pytest.approx(np.mean(results[:2], axis=0))


def test_seconds_to_a_target_between_evaluations_are_interpolated():
  cluster = named("ethernet_10g")
  fast, slow = config_of("local_sgd", period=4), config_of("sync_sgd")
  exact, between = (
    {"fast": entrant(fast, [0], [steps], [40]), "slow": entrant(slow, [0], [steps], [hit])}
    for steps, hit in ((np.array([0, 60]), 60), (np.array([0, 40, 80]), 60.0))
  )
  ratios = [predict.break_even(cluster, 4, entrants, WORK)["ends"][1]["ratio"] for entrants in (exact, between)]
  assert ratios[0] == pytest.approx(ratios[1], rel=1e-6)  # the clock is linear in equal steps


SMALL = (
  "--config=configs/async_easgd_digits.py",
  "--config.steps=60",
  "--config.workers=2",
  "--config.times.slow=(1.0,3.0)",
  "--config.compare.seeds=(0,1)",
  "--config.compare.target=0.5",
  "--only=sync SGD,Async EASGD",
)


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (("--cluster=h100_ib40",), "got 'h100_ib40'. Did you mean 'h100_ib400'?"),
    (
      ("--cluster=fdr,pcie_8gpu", "--config.workers=16", "--config.times.slow=()"),
      "config.workers must be at most 8 on",
    ),
  ],
)
def test_invalid_clusters_are_refused_before_training(wrong, tmp_path, flags, words):
  small = [flag for flag in SMALL if not any(flag.startswith(other.split("=")[0] + "=") for other in flags)]
  wrong([*small, f"--workdir={tmp_path}/a", *flags], words, command="compare")
  assert not (tmp_path / "a").exists()
