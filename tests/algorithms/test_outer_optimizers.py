"""DiLoCo and its streaming variant: special cases and equalities, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, W, build, close, drive, tree_of
from reference import collective as reference

from ddl.algorithms.collective.diloco import diloco_with
from ddl.algorithms.collective.streaming_diloco import streaming_diloco_with
from ddl.schedule import Schedule

pytestmark = pytest.mark.usefixtures("x64")

PAPER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
PLAIN = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
WHOLE = {"fragments": 1, "delay": 0, "keep": 0.0}


def run(algorithm, steps=12, grad=None):
  x0, default = reference.problem(8, steps)
  return drive(algorithm, x0, grad or default, workers=8, steps=steps)[:2]


def create(name, inner="adam", **hyper):
  return build(name, INNER[inner][0], **hyper)


def test_diloco_with_plain_outer_steps_of_rate_one_is_local_sgd():
  period = 4
  x, theta = run(create("diloco", period=period, **PLAIN))
  expected, mean = run(create("local_sgd", period=period))
  close(x, expected)
  close(theta[period - 1 :: period], mean[period - 1 :: period])


def test_streaming_of_one_fragment_is_diloco():
  ours = run(create("streaming_diloco", period=4, **PAPER, **WHOLE))
  for one, other in zip(ours, run(create("diloco", period=4, **PAPER)), strict=True):
    close(one, other)


def test_any_outer_optimizer():
  nesterov = optax.sgd(0.7, momentum=0.9, nesterov=True)
  expected = run(create("diloco", period=3, **PAPER))[0]
  close(run(diloco_with(INNER["adam"][0], nesterov, period=3))[0], expected)
  close(run(streaming_diloco_with(INNER["adam"][0], nesterov, period=3, **WHOLE))[0], expected)
  for outer in (INNER["adamw"][0], optax.sgd(0.7, momentum=0.9)):
    one = run(diloco_with(INNER["adam"][0], outer, period=3))
    close(run(streaming_diloco_with(INNER["adam"][0], outer, period=3, **WHOLE))[0], one[0])
    assert not np.allclose(one[0], expected)


def test_each_fragment_has_its_own_clock():
  """An outer optimizer of rate 0 without momentum resets each fragment when it is due."""
  steps = 12
  hyper = {"period": 4, "outer_learning_rate": 0.0, "outer_momentum": 0.0, "fragments": 2, "delay": 0, "keep": 0.0}
  x, theta = map(np.asarray, run(create("streaming_diloco", **hyper), steps))
  start = np.broadcast_to(reference.problem(8, steps)[0], (8, 7))
  close(theta, np.stack([start] * steps))
  at_start = np.abs(x - start).max(axis=1) < 1e-12  # [steps, n]
  assert at_start[:, :1].all(axis=1).tolist() == [t % 4 == 2 for t in range(1, steps + 1)]
  assert at_start[:, 1:].all(axis=1).tolist() == [t % 4 == 0 for t in range(1, steps + 1)]


def test_a_merge_mixes_the_current_params_with_the_anchor_of_the_launch():
  """x = keep (current x) + (1 - keep) theta, with theta from the x of the launch."""
  algorithm = create("streaming_diloco", "sgd", period=4, **PLAIN, fragments=1, delay=3, keep=0.25)
  x, theta = run(algorithm, 7, lambda i, t, x: jnp.ones_like(x))
  start = reference.problem(8, 7)[0]
  close(theta[6, 0], start - 0.1 * 4)
  close(x[6, 0], start - 0.25 * 0.1 * 7 - 0.75 * 0.1 * 4)


def test_several_fragments_are_in_flight():
  algorithm = create("streaming_diloco", period=6, **PAPER, fragments=3, delay=5, keep=0.5)
  schedule = Schedule(algorithm.exchanges)
  assert [exchange.offset for exchange in algorithm.exchanges] == [-4, -2, 0]
  assert [clock.first for clock in schedule.clocks] == [2, 4, 6]
  assert schedule.in_flight(7) == (0, 1, 1) and schedule.in_flight(9) == (1, 0, 1)


def test_the_outer_optimizer_receives_a_masked_tree():
  seen = []

  def update(updates, state, params=None):
    seen.append(jax.tree.map(jnp.shape, updates))
    return updates, state

  outer = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
  algorithm = streaming_diloco_with(INNER["sgd"][0], outer, period=2, fragments=2, delay=0, keep=0.0)
  params = jax.tree.map(lambda x: jnp.stack([x] * 8), tree_of(jnp.arange(7.0)))
  state = jax.vmap(lambda x: algorithm.init(W, x, None), axis_name="w")(params)
  for exchange in algorithm.exchanges:
    jax.vmap(lambda s, x, e=exchange: e.merge(W, e.launch(W, s, x)[0], s, x), axis_name="w")(state, params)
  assert seen == [{"bias": (), "kernel": optax.MaskedNode()}, {"bias": optax.MaskedNode(), "kernel": (2, 3)}]


@pytest.mark.parametrize(
  "hyper, words",
  [
    ({"fragments": 0}, "fragments must be .*got 0"),
    ({"fragments": 5}, r"fragments with period 4 must be an integer in \[1, 4\], got 5"),
    ({"delay": 5}, r"delay with period 4 must be an integer in \[0, 4\], got 5"),
    ({"delay": -1}, "delay must be .*got -1"),
    ({"keep": 1.5}, "keep must be .*got 1.5"),
  ],
)
def test_invalid_hyperparameters_are_refused(hyper, words):
  with pytest.raises(ValueError, match=words) as refused:
    create("streaming_diloco", **({"period": 4, **PAPER, **WHOLE} | hyper))
  assert "\n" not in str(refused.value)
