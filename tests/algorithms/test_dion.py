"""Dion: equality with one worker, error feedback, rank, traffic and special cases, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import STEPS, WORKERS
from helpers.twins import INNER, build, close, drive
from reference import collective as reference
from reference.dion import dion as in_numpy

import ddl
from ddl.config.optimizers import OPTIMIZERS
from ddl.engine import traffic
from ddl.group import Group

pytestmark = pytest.mark.usefixtures("x64")


def run(rank=0.25, momentum=0.95, workers=WORKERS, grad=None, inner="momentum"):
  x0, default = reference.problem(WORKERS, STEPS)
  algorithm = build("dion", INNER[inner][0], workers, rank=rank, momentum=momentum)
  return drive(algorithm, x0, grad or default, workers=workers, steps=STEPS)


def mean_gradient(worker, step, x):
  """Return the mean of the gradients of all workers."""
  grad = reference.problem(WORKERS, STEPS)[1]
  return sum(grad(i, step, x) for i in range(WORKERS)) / WORKERS


def test_factors_equal_those_of_one_worker_with_the_mean_gradient():
  """The momenta of the workers differ, and their mean is that of the one worker."""
  many, one = run(), run(workers=1, grad=mean_gradient)
  close(many[0], np.repeat(one[0], WORKERS, axis=1))
  (several,), (single,) = (state.factors.values() for _, _, state in (many, one))
  close(several.momentum.mean(axis=0), single.momentum[0])
  assert np.abs(several.momentum - several.momentum[:1]).max() > 1e-3
  close(several.q, np.repeat(single.q, WORKERS, axis=0))


@pytest.mark.parametrize("changes", [{"whole": True}, {"own": True}])
def test_the_error_feedback_may_use_the_workers_factor_or_the_mean(changes):
  x0, grad = reference.problem(WORKERS, STEPS)
  how = {"workers": WORKERS, "steps": STEPS, "inner": INNER["momentum"][1], "rank": 0.25, "momentum": 0.95}
  close(run()[0], in_numpy(x0, grad, **how, **changes).params)


def test_the_full_rank_sends_the_gradient_with_the_same_result():
  x0, grad = reference.problem(WORKERS, STEPS)
  how = {"workers": WORKERS, "steps": STEPS, "inner": INNER["momentum"][1]}
  params, _, state = run(rank=1.0)
  close(params, in_numpy(x0, grad, **how, rank=1.0, momentum=0.95).params)
  (factor,) = state.factors.values()
  close(factor.momentum, np.repeat(factor.momentum[:1], WORKERS, axis=0))


MATRICES = {"hidden": {"kernel": (6, 10)}, "wide": {"kernel": (12, 5)}, "out": {"kernel": (10, 3), "bias": (3,)}}


def arrays(seed, dtype=np.float64):
  """Return random arrays with the shapes of MATRICES."""
  generator = np.random.default_rng(seed)
  return jax.tree.map(
    lambda shape: jnp.asarray(generator.normal(size=shape), dtype), MATRICES, is_leaf=lambda x: isinstance(x, tuple)
  )


def steps_of(algorithm, gradients, params):
  """Return the state of one worker after these gradients."""

  def steps():
    x, state = params, algorithm.init(Group("w"), params, jax.random.key(1))
    for g in gradients:
      x, state = algorithm.local(Group("w"), g, state, x)
    return x, state

  lifted = jax.vmap(lambda _: steps(), axis_name="w")(jnp.arange(1))
  return jax.tree.map(lambda x: x[0], lifted)


def test_momentum_of_a_rank_up_to_r_decays_completely():
  """P P^T M = M, so that only mu M remains."""
  u, v = np.arange(1.0, 7.0), np.linspace(-1, 1, 10)
  gradients = arrays(0) | {"hidden": {"kernel": jnp.asarray(np.outer(u, v))}}
  state = steps_of(ddl.dion(optax.sgd(0.1), rank=0.3, momentum=0.9), [gradients], arrays(1))[1]
  factor = state.factors[0]
  assert factor.q.shape == (6, 2)
  close(factor.momentum, 0.9 * np.outer(u, v).T)


def test_directions_are_scaled_by_the_shape_and_have_the_side_of_the_outputs():
  """The direction of a matrix of rank one is u v^T sqrt(outputs / inputs), with unit vectors u and v."""
  u, v = np.arange(1.0, 13.0), np.linspace(-1, 1, 5)
  gradients = arrays(0) | {"wide": {"kernel": jnp.asarray(np.outer(u, v))}}
  before = arrays(1)
  after = steps_of(ddl.dion(optax.sgd(0.5), rank=0.2), [gradients], before)[0]
  moved = (before["wide"]["kernel"] - after["wide"]["kernel"]) / 0.5
  norm = np.linalg.norm(u) * np.linalg.norm(v)
  close(moved, np.sqrt(5 / 12) * np.outer(u, v) / (norm + 1e-8))
  close(after["out"]["kernel"], before["out"]["kernel"] - 0.5 * gradients["out"]["kernel"])  # the output layer


def test_a_gradient_of_zero_changes_neither_the_model_nor_the_right_factor():
  zeros, params = jax.tree.map(jnp.zeros_like, arrays(0)), arrays(1)
  algorithm = ddl.dion(optax.sgd(0.5))
  (_, first), (x, state) = steps_of(algorithm, [], params), steps_of(algorithm, [zeros, zeros], params)
  jax.tree.map(close, x, params)
  close(state.factors[0].q, first.factors[0].q)
  later = steps_of(algorithm, [zeros, arrays(2)], params)[0]
  jax.tree.map(close, later, steps_of(algorithm, [arrays(2)], params)[0])


def test_bytes_by_hand():
  """r (n + m) values per matrix in two means, and 33 values of the output layer."""
  shapes = jax.eval_shape(lambda: arrays(0, np.float32))
  rank_one = (6 + 10 + 12 + 5 + 33) * 4  # r = ceil(0.15 * 6) = ceil(0.15 * 5) = 1
  share = 2 * 7 / 8
  for rank, nbytes in ((0.15, rank_one), (0.5, ((6 + 10) * 3 + (12 + 5) * 3 + 33) * 4), (1.0, (60 + 60 + 33) * 4)):
    assert traffic.of(ddl.dion(optax.sgd(0.1), rank=rank), shapes, 8).nbytes([]) == 0
    sent = traffic.of(ddl.dion(optax.sgd(0.1), rank=rank), shapes, 8).local
    assert sum(item.per_worker(8) for item in sent) == pytest.approx(share * nbytes), rank


def test_sgd_adamw_decays_matrices_and_applies_adamw_to_the_rest():
  tx = OPTIMIZERS["sgd_adamw"](0.1, weight_decay=0.5)
  params, gradients = arrays(1), arrays(0)
  with jax.numpy_dtype_promotion("standard"):
    updates, _ = tx.update(gradients, tx.init(params), params)
    adamw = optax.adamw(0.1, 0.9, 0.95, weight_decay=0.0)
    other, _ = adamw.update(gradients, adamw.init(params), params)
  close(updates["wide"]["kernel"], -0.1 * (gradients["wide"]["kernel"] + 0.5 * params["wide"]["kernel"]))
  close(updates["out"]["bias"], other["out"]["bias"])
  close(updates["out"]["kernel"], other["out"]["kernel"] - 0.1 * 0.5 * params["out"]["kernel"])


def test_bfloat16_parameters_keep_their_type():
  x, state = steps_of(ddl.dion(optax.sgd(0.1)), [arrays(0, jnp.bfloat16)] * 2, arrays(1, jnp.bfloat16))
  assert {a.dtype for a in jax.tree.leaves((x, state.factors))} == {jnp.dtype(jnp.bfloat16)}
