"""Equalities of Decoupled DiLoCo, and its radial average, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.servers import EVENTS, build, drive, visits
from helpers.simulations import KEY, twin_model, twin_rows
from helpers.twins import INNER, close, flat_of, gradients, tree_of
from hypothesis import given
from hypothesis import strategies as st
from reference import collective as reference
from reference.sequential import Sequential

from ddl.algorithms.server.decoupled_diloco import mean_average, radial_average
from ddl.api import Visit
from ddl.asynchronous.simulator import Simulator
from ddl.engine.execution import ExecutionConfig
from ddl.engine.traffic import visit_nbytes
from ddl.engine.workers import make_workers
from ddl.events.barriers import asp
from ddl.events.operations import stops
from ddl.events.schedule import make_schedule, visits_until
from ddl.events.times import lognormal

pytestmark = pytest.mark.usefixtures("x64")
OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
WHOLE = {"fragments": 1, "delay": 0, "keep": 0.0, **OUTER}


# ---- the radial average


def vectors(count, seed, shape=(2, 3)):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=(count, *shape))), jnp.asarray(rng.integers(1, 9, count), jnp.int32)


@given(st.integers(1, 6), st.integers(0, 999))
def test_the_radial_average_has_the_mean_norm_of_its_arguments(count, seed):
  moved, steps = vectors(count, seed)
  norms = np.linalg.norm(moved.reshape(count, -1), axis=1)
  close(jnp.linalg.norm(radial_average(moved, steps)), np.average(norms, weights=steps))
  units = np.average(moved / norms[:, None, None], axis=0, weights=steps)
  cosine = np.vdot(units, radial_average(moved, steps)) / np.linalg.norm(units) / np.average(norms, weights=steps)
  close(cosine, 1.0)


@pytest.mark.parametrize("average", [mean_average, radial_average])
def test_averages_of_equal_arrays_and_scaled_weights(average):
  moved, steps = vectors(4, 0)
  close(average(moved[:1], steps[:1]), moved[0])  # of one: identity
  close(average(jnp.stack([moved[0]] * 4), steps), moved[0])
  close(average(moved, 3 * steps), average(moved, steps))
  close(average(moved, steps.at[1].set(0)), average(moved[jnp.array([0, 2, 3])], steps[jnp.array([0, 2, 3])]))
  assert not np.allclose(mean_average(moved, steps), radial_average(moved, steps))


def test_directions_that_cancel_give_the_mean():
  moved = jnp.array([[3.0, 4.0], [-0.3, -0.4], [0.0, 0.0]])
  close(radial_average(moved, jnp.array([1, 1, 0])), [1.35, 1.8])
  close(radial_average(jnp.zeros((2, 3)), jnp.array([1, 1])), np.zeros(3))


# ---- equalities


IN_TURN = np.arange(EVENTS) % 4
READS = (IN_TURN + 1) % 4  # each learner reads before its round, as if all had waited for each other


def run(name, order, reads=(), **hyper):
  x0, grad = reference.problem(4, 4 * EVENTS)
  return drive(build(name, "adam", workers=4, **hyper), x0, grad, order, workers=4, reads=reads, compiled=True)


def test_a_quorum_of_all_learners_is_diloco():
  x0, grad = reference.problem(4, 4 * EVENTS)
  steps = 3 * EVENTS // 4
  expected = reference.TWINS["diloco"](x0, grad, workers=4, steps=steps, inner=INNER["adam"][1], period=3, **OUTER)
  hyper = {"quorum": 4, "period": 3, **WHOLE}
  close(run("decoupled_diloco", IN_TURN, READS, average="mean", **hyper)[1][3::4], expected.evaluate[2::3])
  radial = run("decoupled_diloco", IN_TURN, READS, average="radial", **hyper)[1][3::4]
  assert not np.allclose(radial, expected.evaluate[2::3])


@pytest.mark.parametrize("average", ["mean", "radial"])
@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.sampled(2)
def test_a_quorum_of_one_is_fedbuff_with_a_buffer_of_one(average, period):
  order = visits(4)[0]
  buffer = {"buffer": 1, "weight": "constant", "period": period, **OUTER}
  one = run("decoupled_diloco", order, quorum=1, period=period, average=average, **WHOLE)
  for actual, expected in zip(one[:2], run("fedbuff", order, **buffer)[:2], strict=True):
    close(actual, expected)


@pytest.mark.parametrize("delay, keep", [(1, 0.25), (2, 0.0), (0, 0.5)])
@pytest.mark.sampled(3)
def test_fragments_with_a_quorum_of_all_learners_are_streaming_diloco(delay, keep):
  """All learners send, then all read the merged fragment, which they receive tau steps later."""
  workers, period, fragments, steps = 3, 2, 2, 12
  x0, grad = reference.problem(workers, steps)
  hyper = {"fragments": fragments, "delay": delay, "keep": keep, **OUTER}
  inner = INNER["adam"][1]
  expected = reference.TWINS["streaming_diloco"](
    x0, grad, workers=workers, steps=steps, inner=inner, period=period * fragments, **hyper
  )
  algorithm = build("decoupled_diloco", "adam", workers=workers, quorum=workers, average="mean", period=period, **hyper)
  state, server, reply = algorithm.init(tree_of(jnp.asarray(x0)))
  xs, states, replies = [tree_of(jnp.asarray(x0))] * workers, [state] * workers, [reply] * workers
  gradient = gradients(grad)

  def receive():
    for i in range(workers):
      xs[i], states[i] = algorithm.merge(replies[i], states[i], xs[i])

  for t in range(steps):
    if delay and t >= delay and t % period == delay % period:
      receive()
    if t % period == 0:
      for i in range(workers):
        server, replies[i] = algorithm.serve(server, algorithm.request(states[i], xs[i]), Visit(jnp.int32(i), -1))
      for i in range(workers):
        server, replies[i] = algorithm.read(server, replies[i], Visit(jnp.int32(i), -1))
      if not delay:
        receive()
    if t:  # the collective merges after the step, here it is before the next one
      close(jnp.stack([flat_of(x) for x in xs]), expected.params[t - 1])
    grads = gradient(t, jax.tree.map(lambda *x: jnp.stack(x), *xs))
    for i in range(workers):
      xs[i], states[i] = algorithm.local(jax.tree.map(lambda g, i=i: g[i], grads), states[i], xs[i])


def test_a_learner_that_sends_twice_before_a_merge_adds_to_its_progress():
  """Its weight is the sum of its steps, and its progress counts once."""
  x0, grad = reference.problem(4, 4 * EVENTS)
  hyper = {"average": "mean", **WHOLE, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
  algorithm = build("decoupled_diloco", workers=4, quorum=2, period=2, **hyper)
  _, _, server, all_ = drive(algorithm, x0, grad, [0, 0], workers=4)
  moved = x0 - flat_of(all_[0][0])
  close(flat_of(jax.tree.map(lambda x: x[0], server.moved)), moved)
  assert server.steps[:, 0].tolist() == [4, 0, 0, 0]
  params, evaluate, server, _ = drive(algorithm, x0, grad, [0, 0, 1], workers=4)
  close(evaluate[-1], x0 - (4 * moved + 2 * (x0 - params[-1])) / 6)
  assert not server.steps.any() and int(server.version[0]) == 1


def test_the_first_messages_with_a_delay_are_no_progress():
  x0, grad = reference.problem(4, 4 * EVENTS)
  algorithm = build("decoupled_diloco", workers=4, quorum=1, period=2, delay=1, fragments=1)
  _, evaluate, server, _ = drive(algorithm, x0, grad, range(4), workers=4)
  close(evaluate, np.broadcast_to(x0, evaluate.shape))
  assert not server.version.any()


# ---- virtual time


@pytest.mark.parametrize("gradients", ["map", "vmap"])
@pytest.mark.sampled(2)
def test_waves_with_deaths_equal_one_event_at_a_time(gradients):
  hyper = {"quorum": 2, "period": 3, "delay": 2, "fragments": 2, "keep": 0.25}
  algorithm, steps = build("decoupled_diloco", "adam", workers=4, **hyper), 18
  times = lognormal(workers=4, seed=0, slow=(1.0, 1.0, 2.5, 1.0), death_rate=0.05, down_seconds=0.02)
  schedule = make_schedule(algorithm, workers=4, steps=steps, times=times, barrier=asp(), message_seconds=0.001)
  events, operations = schedule
  assert events.restarted.any()
  model, how = twin_model(4, 4 * steps), ExecutionConfig(gradients, "scan", 64)
  simulator = Simulator(algorithm, model, make_workers(4, 2), how, *schedule)
  carry = simulator.start(KEY)
  for _, after, _ in simulator.run(carry, simulator.plan(0, steps, 5), twin_rows, KEY):
    carry = after
  one = Sequential(algorithm, model, *schedule, 4)
  one.start(*model.init(KEY))
  last = stops(operations, [visits_until(algorithm, events, 4, steps)])[0]
  one.run(0, last, lambda w, t: ({"worker": [w], "step": [t]}, KEY))
  close(flat_of(simulator.consensus(carry).params), flat_of(algorithm.evaluate(one.server)))
  for worker in range(4):
    close(flat_of(jax.tree.map(lambda x, i=worker: x[i], carry.worker.params)), flat_of(one.params[worker]))
  assert int(one.server.version.min()) > 1


# ---- bytes and errors


@pytest.mark.parametrize("fragments, largest", [(1, 20), (2, 15), (4, 15)])
def test_a_visit_sends_the_largest_fragment_and_two_integers_each_way(fragments, largest):
  params = {"w": jax.ShapeDtypeStruct((3, 5), np.float32), "b": jax.ShapeDtypeStruct((5,), np.float32)}
  algorithm = build("decoupled_diloco", workers=4, fragments=fragments)
  assert visit_nbytes(algorithm, params) == (4 * largest + 8, 4 * largest + 8)


@pytest.mark.parametrize(
  "wrong, option", [({"quorum": 5}, "quorum"), ({"delay": 7}, "delay"), ({"average": "median"}, "average")]
)
def test_errors_name_the_option(wrong, option):
  with pytest.raises(ValueError, match=rf"^decoupled_diloco\.{option} .*must be .*, got \S+\.$"):
    build("decoupled_diloco", workers=4, **wrong)
