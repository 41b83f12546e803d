"""Equalities of servers that collect, weigh or ignore messages, in float64 at rtol 1e-12."""

import jax
import numpy as np
import optax
import pytest
from helpers.servers import EVENTS, build, drive, visits
from helpers.twins import INNER, close, flat_of, tree_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import collective as reference

from ddl.api import Visit
from ddl.engine.traffic import visit_nbytes

pytestmark = pytest.mark.usefixtures("x64")
IN_TURN = np.arange(EVENTS) % 4
READS = (IN_TURN + 1) % 4  # each worker reads the center before its round, as if all had waited for each other
PLAIN = {"weight": "constant", "outer_learning_rate": 1.0, "outer_momentum": 0.0}
ORDERS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def run(name, inner="sgd", *, order=None, workers=4, reads=(), **hyper):
  """Return (params, evaluated params, server) of all events on the common problem."""
  x0, grad = reference.problem(4, 4 * EVENTS)
  order = visits(4)[0] if order is None else order
  return drive(build(name, inner, workers=workers, **hyper), x0, grad, order, workers=workers, reads=reads)[:3]


def same(one, other):
  for actual, expected in zip(one[:2], other[:2], strict=True):
    close(actual, expected)


# ---- FedBuff


@pytest.mark.parametrize("inner", ["momentum", "adam"])
def test_fedbuff_with_a_buffer_of_all_workers_is_local_sgd(inner):
  """Without weights and momentum; each worker keeps the state of its optimizer."""
  x0, grad = reference.problem(4, 4 * EVENTS)
  rounds = EVENTS // 4
  expected = reference.local_sgd(x0, grad, workers=4, steps=3 * rounds, inner=INNER[inner][1], period=3)
  _, evaluate, server = run("fedbuff", inner, order=IN_TURN, reads=READS, buffer=4, period=3, **PLAIN)
  close(evaluate[3::4], expected.evaluate[2::3])
  assert int(server.version) == rounds


def test_fedbuff_with_a_buffer_of_all_workers_is_diloco():
  """Equal staleness, 0, gives equal weights of 1."""
  x0, grad = reference.problem(4, 4 * EVENTS)
  hyper = {"outer_learning_rate": 0.7, "outer_momentum": 0.9, "period": 3}
  expected = reference.TWINS["diloco"](x0, grad, workers=4, steps=3 * EVENTS // 4, inner=INNER["adam"][1], **hyper)
  close(run("fedbuff", "adam", order=IN_TURN, reads=READS, buffer=4, **hyper)[1][3::4], expected.evaluate[2::3])


def test_fedbuff_with_a_buffer_of_one_step_is_async_sgd():
  close(run("fedbuff", buffer=1, period=1, **PLAIN)[1], run("async_sgd")[1])
  assert not np.allclose(run("fedbuff", buffer=1, period=1, **PLAIN | {"weight": "polynomial"})[1], run("async_sgd")[1])


def test_fedbuff_with_a_buffer_of_one_is_async_local_sgd_with_a_momentum_update_per_arrival():
  outer = {"outer_learning_rate": 0.5, "outer_momentum": 0.9, "period": 2}
  same(run("fedbuff", "adam", buffer=1, weight="constant", **outer), run("async_local_sgd", "adam", every=1, **outer))


@settings(max_examples=8, deadline=None)
@given(order=ORDERS, buffer=st.integers(1, 5), seed=st.integers(0, 99))
def test_fedbuff_moves_the_center_by_the_sum_of_the_differences_that_arrived(order, buffer, seed):
  """z_end = z_0 - e / K times the sum of all D in full buffers."""
  moved, center = np.random.default_rng(seed).normal(size=(len(order), 7)), np.arange(7.0)
  algorithm = build("fedbuff", buffer=buffer, workers=4, period=1, **PLAIN | {"outer_learning_rate": 0.3})
  _, server, _ = algorithm.init(tree_of(center))
  for worker, d in zip(order, moved, strict=True):
    server, _ = algorithm.serve(server, tree_of(d), Visit(np.int32(worker), np.int32(-1)))
  full = len(order) // buffer * buffer
  close(flat_of(server.center), center - 0.3 / buffer * moved[:full].sum(axis=0))
  close(flat_of(server.mean), moved[full:].sum(axis=0) / buffer)


def test_fedbuff_divides_a_stale_difference_by_the_root_of_its_staleness_plus_one():
  """Worker 0 makes 8 outer steps while worker 1 computes; D of worker 1 is then divided by 3."""
  algorithm = build("fedbuff", buffer=1, workers=2, period=1, outer_learning_rate=1.0, outer_momentum=0.0)
  _, server, _ = algorithm.init(tree_of(np.zeros(7)))
  for worker in (0,) * 8 + (1,):
    before = flat_of(server.center)
    server, _ = algorithm.serve(server, tree_of(np.arange(7.0)), Visit(np.int32(worker), np.int32(-1)))
    close(before - flat_of(server.center), np.arange(7.0) / (1 if worker == 0 else 3))


@pytest.mark.parametrize(
  "name, hyper",
  [("fedbuff", {"period": 2, "buffer": 3}), ("rennala_sgd", {"gradients": 3}), ("ringmaster_asgd", {"threshold": 2})],
)
def test_a_worker_that_never_arrives_changes_nothing(name, hyper):
  order = np.random.default_rng(0).integers(3, size=EVENTS)
  same(run(name, "adam", order=order, workers=3, **hyper), run(name, "adam", order=order, workers=4, **hyper))


# ---- Ringmaster and Rennala


def test_ringmaster_with_an_infinite_threshold_is_async_sgd():
  same(run("ringmaster_asgd", "adam", threshold=EVENTS + 1), run("async_sgd", "adam"))
  assert not np.allclose(run("ringmaster_asgd", "adam", threshold=2)[1], run("async_sgd", "adam")[1])


def test_ringmaster_that_applies_only_fresh_gradients_is_rennala_with_one_gradient():
  same(run("ringmaster_asgd", "adam", threshold=1), run("rennala_sgd", "adam", gradients=1))


def test_rennala_with_a_gradient_of_each_worker_is_synchronous_sgd():
  x0, grad = reference.problem(4, 4 * EVENTS)
  expected = reference.sync_sgd(x0, grad, workers=4, steps=EVENTS // 4, inner=INNER["adam"][1])
  close(run("rennala_sgd", "adam", order=IN_TURN, reads=READS, gradients=4)[1][3::4], expected.evaluate)


@settings(max_examples=10, deadline=None)
@given(order=ORDERS, bound=st.integers(1, 4))
def test_applied_and_ignored_gradients_are_all_arrivals(order, bound):
  """Every applied delay is below R; Rennala applies B gradients per update, all computed at the current center."""
  g, zero = tree_of(np.ones(7)), tree_of(np.zeros(7))
  ring = build("ringmaster_asgd", optax.sgd(1.0), workers=4, threshold=bound)
  rennala = build("rennala_sgd", optax.sgd(1.0), workers=4, gradients=bound)
  server, waits = (algorithm.init(zero)[1] for algorithm in (ring, rennala))
  pulled, since, version, ignored, fresh = [0] * 4, [0] * 4, 0, 0, 0
  for worker in order:
    visit = Visit(np.int32(worker), np.int32(-1))
    delay, before = version - pulled[worker], int(server.version)
    server, _ = ring.serve(server, g, visit)
    applied = int(server.version) - before
    assert applied == (delay < bound)
    version, ignored = version + applied, ignored + 1 - applied
    pulled[worker] = version
    fresh += since[worker] == int(waits.version)
    waits, _ = rennala.serve(waits, g, visit)
    since[worker] = int(waits.version)
  assert int(server.version) + ignored == len(order)
  close(flat_of(server.center), np.full(7, -float(server.version)))  # each applied gradient moves the center by one
  assert (int(waits.version), int(waits.count)) == divmod(fresh, bound)
  close(flat_of(waits.center), np.full(7, -float(waits.version)))


# ---- bytes and errors


@pytest.mark.parametrize("name", ["fedbuff", "rennala_sgd", "ringmaster_asgd"])
def test_a_visit_sends_one_model_each_way(name):
  params = {"w": jax.ShapeDtypeStruct((3, 5), np.float32), "b": jax.ShapeDtypeStruct((5,), np.float32)}
  assert visit_nbytes(build(name, workers=4), params) == (4 * 20, 4 * 20)


def test_an_unknown_weight_is_refused():
  with pytest.raises(ValueError, match=r"^fedbuff\.weight must be one of polynomial, constant, got 'hinge'\.$"):
    build("fedbuff", workers=4, weight="hinge")
