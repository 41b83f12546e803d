"""Equalities between server algorithms, and what they conserve in any order, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.servers import ELASTIC, EVENTS, PEERS, build, drive, visits
from helpers.twins import INNER, close, flat_of, tree_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import collective as reference

from ddl.api import Visit

pytestmark = pytest.mark.usefixtures("x64")


def run(name, inner="sgd", *, workers=4, order=None, grad=None, reads=(), **hyper):
  """Return (params, evaluated params) of all events on the common problem."""
  x0, default = reference.problem(workers, 4 * EVENTS)
  random_order, peers = visits(workers)
  order = random_order if order is None else order
  algorithm = build(name, inner, workers=workers, **hyper)
  return drive(algorithm, x0, grad or default, order, peers[: len(order)], workers=workers, reads=reads)[:2]


def same(one, other):
  for actual, expected in zip(one, other, strict=True):
    close(actual, expected)


# ---- equalities


def test_async_sgd_of_one_worker_is_its_optimizer():
  x0, grad = reference.problem(1, 4 * EVENTS)
  expected = reference.sync_sgd(x0, grad, workers=1, steps=EVENTS, inner=INNER["adam"][1])
  close(run("async_sgd", "adam", workers=1)[1], expected.evaluate)


def test_async_msgd_is_async_sgd_with_momentum_at_the_master():
  same(run("async_msgd", "sgd", momentum=0.9), run("async_sgd", optax.sgd(0.1, momentum=0.9)))


def test_hogwild_sgd_with_a_lock_is_async_sgd_for_plain_sgd():
  same(run("hogwild_sgd", "sgd"), run("async_sgd", "sgd"))
  assert not np.allclose(
    run("hogwild_sgd", "momentum")[1], run("async_sgd", "momentum")[1]
  )  # the worker has the momentum


def test_downpour_of_one_step_is_async_sgd_for_plain_sgd():
  close(run("downpour", "sgd", period=1)[1], run("async_sgd", "sgd")[1])


@pytest.mark.parametrize("adaptive", [False, True])
def test_dc_asgd_without_delay_or_compensation_is_async_sgd(adaptive):
  plain = run("async_sgd", "adam")
  same(run("dc_asgd", "adam", compensation=0.0, adaptive=adaptive), plain)
  assert not np.allclose(run("dc_asgd", "adam", compensation=0.5, adaptive=adaptive)[1], plain[1])
  one = {"workers": 1, "order": np.zeros(EVENTS, int)}  # without delay
  same(run("dc_asgd", "adam", compensation=9.0, adaptive=adaptive, **one), run("async_sgd", "adam", **one))


def test_a_staleness_of_at_most_one_is_async_sgd():
  order = np.arange(EVENTS) % 2
  plain = run("async_sgd", "adam", workers=2, order=order)
  same(run("staleness_aware_sgd", "adam", workers=2, order=order), plain)
  order = np.arange(EVENTS) % 3  # from the third event on the staleness is 2
  slower = run("staleness_aware_sgd", "sgd", workers=3, order=order)[1]
  step, plain = (np.diff(x, axis=0)[1] for x in (slower, run("async_sgd", "sgd", workers=3, order=order)[1]))
  close(step, plain / 2)


def test_dynsgd_of_one_worker_is_its_optimizer():
  x0, grad = reference.problem(1, 4 * EVENTS)
  expected = reference.sync_sgd(x0, grad, workers=1, steps=2 * EVENTS, inner=INNER["momentum"][1])
  close(run("dynsgd", "momentum", workers=1, period=2)[1], expected.evaluate[1::2])


@pytest.mark.parametrize("rate, momentum", [(1.0, 0.0), (0.7, 0.9)])
def test_async_local_sgd_of_one_worker_is_diloco(rate, momentum):
  x0, grad = reference.problem(1, 4 * EVENTS)
  z, outer, update, expected = x0, reference.nesterov(rate, momentum)(), INNER["adam"][1](), []
  for t in range(0, 2 * EVENTS, 2):
    x = z + update(grad(0, t, z), z)
    x = x + update(grad(0, t + 1, x), x)
    z = z + outer(z - x, z)
    expected.append(z)
  hyper = {"outer_learning_rate": rate, "outer_momentum": momentum, "every": 1, "decay": 0.0, "period": 2}
  close(run("async_local_sgd", "adam", workers=1, **hyper)[1], expected)


def test_delayed_nesterov_between_two_momentum_updates():
  """With D = 0 each arrival moves z by e c beta m."""
  hyper = {"outer_learning_rate": 0.5, "outer_momentum": 0.9, "every": 4, "period": 1}
  server = build("async_local_sgd", workers=4, decay=0.25, **hyper)
  x = tree_of(np.arange(7.0))
  start = server.init(x)[1]._replace(momentum=x)
  after = start
  for i in range(3):
    after, _ = server.serve(after, jax.tree.map(np.zeros_like, x), Visit(np.int32(i), np.int32(-1)))
  close(flat_of(after.center), np.arange(7.0) * (1 - 3 * 0.5 * 0.25 * 0.9))


@pytest.mark.parametrize("name", ELASTIC)
def test_elastic_averaging_of_one_worker_is_sync_easgd(name):
  hyper = {"alpha": 0.3}
  period = 1 if name == "original_easgd" else 2
  x0, grad = reference.problem(1, 4 * EVENTS)
  sync = reference.easgd(x0, grad, workers=1, steps=period * EVENTS, inner=INNER["momentum"][1], period=period, **hyper)
  hyper |= {} if name == "original_easgd" else {"period": period}
  hyper |= {"momentum": 0.0} if name == "async_measgd" else {}
  close(run(name, "momentum", workers=1, **hyper)[1], sync.evaluate[::period])


def test_async_measgd_has_the_velocity_of_sgd_with_momentum():
  one = run("async_measgd", "sgd", alpha=0.2, momentum=0.9, period=2)
  same(one, run("async_easgd", optax.sgd(0.1, momentum=0.9), alpha=0.2, period=2))


def test_original_easgd_is_async_easgd_served_by_rank():
  order = np.arange(EVENTS) % 4
  same(
    run("original_easgd", "adam", alpha=0.2, order=order), run("async_easgd", "adam", alpha=0.2, period=1, order=order)
  )
  assert build("original_easgd", workers=4).arrivals.round_robin
  assert not build("async_easgd", workers=4).arrivals.round_robin


def test_gradients_at_the_current_center_are_not_stale():
  """If each worker reads the center before its step, three algorithms for stale gradients are async SGD."""
  order, reads = np.arange(EVENTS) % 4, (np.arange(EVENTS) + 1) % 4
  plain = run("async_sgd", "sgd", order=order, reads=reads)[1]
  close(run("dc_asgd", "sgd", order=order, reads=reads, compensation=9.0, adaptive=False)[1], plain)
  close(run("staleness_aware_sgd", "sgd", order=order, reads=reads)[1], plain)
  close(run("dynsgd", "sgd", order=order, reads=reads, period=1)[1], plain)
  assert not np.allclose(run("dynsgd", "sgd", order=order, period=1)[1], plain)


# ---- conservation, in any order


def zero(worker, step, x):
  return jnp.zeros_like(x)


ORDERS = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3)), min_size=1, max_size=20)


def exchanges(pairs):
  """Return (order, peers) in which no worker is its own peer."""
  order, peers = np.array(pairs).T
  return order, np.where(order == peers, -1, peers)


@pytest.mark.parametrize("name", ELASTIC)
@settings(max_examples=8, deadline=None)
@given(pairs=ORDERS, seed=st.integers(0, 99))
def test_elastic_averaging_conserves_the_sum_of_all(name, pairs, seed):
  x0 = np.random.default_rng(seed).normal(size=(4, 7))
  algorithm = build(name, workers=4, alpha=0.3)
  order, _ = exchanges(pairs)
  _, _, center, workers = drive(algorithm, x0, zero, order, workers=4)
  models = [algorithm.merge(reply, state, params)[0] for params, state, reply in workers]  # merges replies in flight
  close(sum(map(flat_of, models)) + flat_of(center), x0.sum(0) + x0[0])


def test_hogwild_easgd_conserves_with_torn_reads():
  algorithm = build("hogwild_easgd", workers=4, alpha=0.3)
  w, seen = (tree_of(np.random.default_rng(seed).normal(size=7)) for seed in range(2))
  reply = algorithm.lock_free.reply(w, seen)
  lost = flat_of(w) - flat_of(algorithm.merge(reply, algorithm.init(w)[0], w)[0])
  close(lost, flat_of(algorithm.lock_free.increment(w, seen)))


@pytest.mark.parametrize("name", ["hogwild_sgd", "hogwild_easgd"])
def test_a_lock_free_visit_without_concurrent_visits_is_a_locked_one(name):
  algorithm = build(name, workers=4)
  message, center = (tree_of(np.random.default_rng(seed).normal(size=7)) for seed in range(2))
  rule, add = algorithm.lock_free, lambda z, u: jax.tree.map(lambda z, u: z + u, z, u)
  after = add(center, rule.increment(message, center))
  reply = rule.reply(message, center if rule.reads_first else after)
  expected = algorithm.serve(center, message, Visit(np.int32(0), np.int32(-1)))
  same([flat_of(after), flat_of(reply)], [flat_of(x) for x in expected])


@settings(max_examples=8, deadline=None)
@given(pairs=ORDERS, seed=st.integers(0, 99))
def test_gosgd_conserves_the_weights_and_the_weighted_sum(pairs, seed):
  order, peers = exchanges(pairs)
  rng = np.random.default_rng(seed)
  algorithm = build("gosgd", workers=4)
  params = tree_of(np.zeros(7))
  server = algorithm.init(params)[1]._replace(board=jax.vmap(tree_of)(jnp.asarray(rng.normal(size=(4, 7)))))
  before = flat_of(algorithm.evaluate(server))
  for i, j in zip(order, peers, strict=True):
    server, _ = algorithm.serve(server, params, Visit(np.int32(i), np.int32(j)))
  close(server.weights.sum(), 1.0)
  assert (server.weights > 0).all()
  close(flat_of(algorithm.evaluate(server)), before)


WEIGHTS = {  # of x_2 and x_0 in the new models of worker 2, which sends no change, and of its peer 0
  "pull_gossip": ([0.5, 0.5], [0, 1]),
  "push_gossip": ([1, 0], [0.5, 0.5]),
  "ad_psgd": ([0.5, 0.5], [0.5, 0.5]),
  "gosgd": ([1, 0], [1 / 3, 2 / 3]),
}


@pytest.mark.parametrize("name", PEERS)
def test_weights_of_both_models_after_an_exchange(name):
  algorithm = build(name, workers=4)
  assert algorithm.arrivals.peers == ("bipartite" if name == "ad_psgd" else "uniform")
  models = np.random.default_rng(0).normal(size=(4, 7))
  board, change = jax.vmap(tree_of)(jnp.asarray(models)), tree_of(np.zeros(7))
  server = algorithm.init(change)[1]
  server = server._replace(board=board) if name == "gosgd" else board

  def after(peer):
    new, reply = algorithm.serve(server, change, Visit(np.int32(2), np.int32(peer)))
    new = jax.vmap(flat_of)(new.board if name == "gosgd" else new)
    np.testing.assert_array_equal(flat_of(reply), new[2])
    return new

  np.testing.assert_array_equal(after(-1), models)  # bit for bit
  expected = models.copy()
  expected[[2, 0]] = WEIGHTS[name] @ models[[2, 0]]
  close(after(0), expected)


def test_gosgd_without_peers_is_pull_gossip_without_peers():
  assert build("gosgd", workers=4, probability=0.25).arrivals.peer_probability == 0.25
  x0, grad = reference.problem(4, 4 * EVENTS)
  order, _ = visits(4)
  runs = [drive(build(name, "adam", workers=4), x0, grad, order, workers=4) for name in ("gosgd", "pull_gossip")]
  same(runs[0][:2], runs[1][:2])
