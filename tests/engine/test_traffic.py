"""Bytes per worker, recorded from the algorithms, against numbers computed by hand and the compiled program's."""

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers.twins import build

from ddl.algorithms import COLLECTIVE
from ddl.costs.cluster_clock import pattern_of
from ddl.engine import traffic
from ddl.perf.patterns import Op
from ddl.schedule import Schedule

PARAMS = {"kernel": jax.ShapeDtypeStruct((10, 3), jnp.float32), "bias": jax.ShapeDtypeStruct((3,), jnp.float32)}
BYTES = 33 * 4  # of two leaves
OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}


def create(name, workers=8, **hyper):
  return build(name, optax.sgd(0.1, momentum=0.9), workers, **hyper)


def counted(name, workers=8, **hyper):
  sent = traffic.of(create(name, workers, **hyper), PARAMS, workers)
  return sent.sent(sent.local), [sent.sent(ops) for ops in sent.exchanges]


def all_reduce(workers=8):
  return 2 * BYTES * (workers - 1) / workers


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_step_of_each(workers):
  one = all_reduce(workers)
  assert counted("sync_sgd", workers) == (one, [])
  assert counted("independent", workers) == (0, [])
  for name, hyper in {
    "local_sgd": {"period": 5}, "post_local_sgd": {"period": 5, "start": 3}, "easgd": {"period": 5, "alpha": 0.1},
    "dasgd": {"period": 5, "delay": 2, "keep": 0.5}, "eamsgd": {"period": 5, "alpha": 0.1, "momentum": 0.9},
    "diloco": {"period": 5, **OUTER}, "muloco": {"period": 5, **OUTER}, "eager_diloco": {"period": 5, **OUTER},
    "slowmo": {"period": 5, "slow_rate": 1.0, "slow_momentum": 0.5}, "pipe_sgd": {"width": 2}, "cocod": {"period": 5},
    "bmuf": {"period": 5, "block_learning_rate": 1.0, "block_momentum": 0.5, "nesterov": True},
    "overlap_local_sgd": {"period": 5, "pull": 0.6, "momentum": 0.7},
    "sma": {"alpha": 0.1, "momentum": 0.9, "period": 5}, "fedavg": {"period": 5, "share": 1.0},
    "adaptive_local_sgd": {"periods": ((0, 5), (20, 2))},
  }.items():  # fmt: skip
    assert counted(name, workers, **hyper) == (0, [one]), name


@pytest.mark.parametrize("share, sampled", [(1 / 8, 1), (0.3, 2), (0.5, 4), (0.9, 7), (0.01, 1)])
def test_a_sampled_worker_downloads_the_model_and_uploads_its_own(share, sampled):
  """2 C n per worker on average, and twice that with control variates: not an all-reduce of all workers."""
  assert counted("fedavg", period=5, share=share) == (0, [2 * sampled * BYTES / 8])
  assert counted("scaffold", period=5, share=share, server_rate=1.0) == (0, [4 * sampled * BYTES / 8])


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sample_of_all_workers_sends_what_local_sgd_does(workers):
  for share in (1.0, 0.9):
    assert counted("fedavg", workers, period=5, share=share) == (0, [all_reduce(workers)])
    assert counted("scaffold", workers, period=5, share=share, server_rate=1.0) == (0, [2 * all_reduce(workers)])


@pytest.mark.parametrize("workers", [2, 8])
def test_the_center_of_a_round_robin_is_visited_by_one_worker_a_step(workers):
  assert counted("round_robin_easgd", workers, alpha=0.1) == (0, [2 * BYTES / workers])


def test_the_cost_model_knows_whose_values_are_summed():
  (exchange,) = pattern_of(create("fedavg", period=5, share=0.25), PARAMS, 8).exchanges
  assert exchange.ops == (Op("all_reduce", BYTES, senders=2),)


def test_each_fragment_sends_its_own_arrays():
  hyper = {"period": 9, **OUTER, "delay": 2, "keep": 0.5}
  bias, kernel = 2 * 3 * 4 * 7 / 8, 2 * 30 * 4 * 7 / 8
  assert counted("streaming_diloco", fragments=2, **hyper) == (0, [bias, kernel])
  assert counted("streaming_diloco", fragments=3, **hyper) == (0, [bias, kernel, 0])
  assert counted("streaming_diloco", fragments=1, **hyper) == (0, [all_reduce()])


@pytest.mark.parametrize(
  "graph, workers, models",
  [
    ("ring", 8, [2]), ("ring", 3, [2]), ("ring", 2, [1]), ("ring", 1, [0]), ("torus", 8, [3]), ("torus", 12, [4]),
    ("torus", 7, [2]), ("exponential", 8, [3]), ("exponential", 9, [4]), ("exponential", 2, [1]),
    ("one_peer_exponential", 8, [1, 1, 1]), ("one_peer_exponential", 1, [0]),
  ],
)  # fmt: skip
def test_a_worker_sends_its_model_to_its_neighbours_alone(graph, workers, models):
  assert counted("d_psgd", workers, graph=graph) == (0, [n * BYTES for n in models])


@pytest.mark.parametrize("workers, models", [(1, 0), (2, 2), (5, 2), (8, 2)])
def test_a_worker_of_noloco_sends_two_models_to_one_other(workers, models):
  assert counted("noloco", workers, **(SOME["noloco"] | {"pairings": 2})) == (0, [models * BYTES] * 2)


@pytest.mark.parametrize("workers, rounds", [(1, 0), (2, 1), (5, 3), (8, 3)])
def test_a_worker_of_sgp_sends_its_model_and_its_weight_to_one_other(workers, rounds):
  assert counted("sgp", workers) == (0, [BYTES + 4] * rounds)
  assert counted("overlap_sgp", workers, overlap=2) == (0, [BYTES + 4] * rounds)


@pytest.mark.parametrize("size, padded", [(1, 0), (2, 30 + 4), (4, 32 + 4), (8, 32 + 8)])
def test_a_group_of_hierarchical_sgd_sends_the_strips_of_its_ring(size, padded):
  """A reduce-scatter and an all-gather of the workers of a group: each n (g-1)/g, n of arrays in g equal strips."""
  sent = counted("hierarchical_sgd", group_size=size, period=2, outer_period=6)
  assert sent == (0, [2 * padded * 4 * (size - 1) / size, all_reduce()])


@pytest.mark.parametrize("workers, padded", [(2, 34), (4, 36), (8, 40)])
def test_sharded_sends_the_padded_vector_twice(workers, padded):
  """A reduce-scatter and an all-gather of n = padded values: each n (p-1)/p, together what an all-reduce sends."""
  assert counted("sharded_sync_sgd", workers) == (2 * padded * 4 * (workers - 1) / workers, [])


def test_who_asks_in_a_step():
  asks = {name for name in COLLECTIVE if traffic.of(create(name, **SOME.get(name, {})), PARAMS, 8).local_uses_group}
  assert asks == {"sync_sgd", "sharded_sync_sgd", "distributed_lion", "snoo", "gpa", "dion"}


SOME = {
  "local_sgd": {"period": 10}, "post_local_sgd": {"period": 10, "start": 30}, "easgd": {"period": 10, "alpha": 0.1},
  "dasgd": {"period": 10, "delay": 2, "keep": 0.5}, "eamsgd": {"period": 10, "alpha": 0.1, "momentum": 0.9},
  "round_robin_easgd": {"alpha": 0.1}, "diloco": {"period": 10, **OUTER}, "d_psgd": {"graph": "ring"},
  "streaming_diloco": {"period": 10, **OUTER, "fragments": 2, "delay": 2, "keep": 0.5},
  "slowmo": {"period": 10, "slow_rate": 1.0, "slow_momentum": 0.5}, "pipe_sgd": {"width": 2}, "cocod": {"period": 10},
  "bmuf": {"period": 10, "block_learning_rate": 1.0, "block_momentum": 0.5, "nesterov": True},
  "overlap_local_sgd": {"period": 10, "pull": 0.6, "momentum": 0.7}, "eager_diloco": {"period": 10, **OUTER},
  "sma": {"alpha": 0.1, "momentum": 0.9, "period": 10},
  "overlap_sgp": {"overlap": 10}, "hierarchical_sgd": {"group_size": 4, "period": 5, "outer_period": 20},
  "adaptive_local_sgd": {"periods": ((0, 5), (20, 2))}, "fedavg": {"period": 10, "share": 0.5},
  "scaffold": {"period": 10, "share": 0.5, "server_rate": 1.0},
  "noloco": {
    "period": 10, "outer_learning_rate": 0.7, "outer_momentum": 0.5, "attraction": 0.7, "pairings": 3
  },
}  # fmt: skip


def test_a_run_pays_for_its_exchanges():
  def exchanges(name, steps, **hyper):
    algorithm = create(name, **(SOME.get(name, {}) | hyper))
    schedule = Schedule(algorithm.exchanges)
    return traffic.of(algorithm, PARAMS, 8).nbytes(map(schedule.due, range(steps))) / all_reduce()

  assert exchanges("sync_sgd", 100) == 100
  assert exchanges("local_sgd", 100) == 10
  assert exchanges("local_sgd", 109) == 10
  assert exchanges("post_local_sgd", 100) == 30 + 7
  assert exchanges("adaptive_local_sgd", 100, periods=((0, 30), (40, 10), (70, 1))) == 2 + 1 + 30  # after 30, 60, 70
  assert exchanges("dasgd", 100) == 9  # none in the first round
  assert exchanges("dasgd", 101) == 10  # one that has left and not arrived
  assert exchanges("dasgd", 100, delay=0) == 10
  assert exchanges("easgd", 100) == 10
  assert exchanges("easgd", 101) == 11  # at steps 0, 10, ..., 100
  assert exchanges("round_robin_easgd", 100) == pytest.approx(100 * 2 * BYTES / 8 / all_reduce())
  assert exchanges("fedavg", 109, share=0.25) == pytest.approx(10 * 2 * BYTES / 4 / all_reduce())
  assert exchanges("diloco", 100) == 10
  assert exchanges("muloco", 100, period=30) == 3  # after 30, 60, 90
  assert exchanges("slowmo", 100) == exchanges("bmuf", 100) == 10
  assert exchanges("cocod", 100) == 9  # each in flight for a round, the first of them after one
  assert exchanges("overlap_local_sgd", 100) == exchanges("eager_diloco", 100) == 10  # the first before step 0
  assert exchanges("pipe_sgd", 100) == 99  # after each step but the last
  assert exchanges("sma", 100) == 10
  assert exchanges("noloco", 100) == pytest.approx(10 * 2 * BYTES / all_reduce())
  assert exchanges("streaming_diloco", 100) == pytest.approx(9 + 3 / 33)  # 9 kernels; 10 biases, half a round before
  assert exchanges("d_psgd", 100) == pytest.approx(100 * 2 * BYTES / all_reduce())
  assert exchanges("d_psgd", 100, graph="one_peer_exponential") == pytest.approx(100 * BYTES / all_reduce())
  assert exchanges("independent", 100) == 0
