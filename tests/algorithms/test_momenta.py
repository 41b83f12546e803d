"""Wrappers with a momentum per worker: equalities, convergence, memories, bytes and refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import model, record
from helpers.twins import INNER, W, build, close, drive, flat_of, tree_of
from reference import collective as reference
from reference import compression
from reference.momenta import DGC

from ddl.algorithms import WRAPPERS
from ddl.algorithms.wrappers.dgc import momenta
from ddl.api import FirstSteps
from ddl.engine import traffic
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.schedule import Schedule

pytestmark = pytest.mark.usefixtures("x64")

TABLE = np.random.default_rng(1).normal(size=(3, 6, 7))  # gradients [workers, steps, n]
PARAMS = {"kernel": jax.ShapeDtypeStruct((10, 3), jnp.float32), "bias": jax.ShapeDtypeStruct((3,), jnp.float32)}


def wrap(name, inner=None, base="sync_sgd", **hyper):
  return WRAPPERS[name].factory(build(base, inner or INNER["sgd"][0]), **hyper)


def run(algorithm, grad=None, workers=3, steps=6):
  """Return the params of worker 0 [steps, n] and the state after training on TABLE or another gradient."""
  x0 = reference.problem(workers, steps)[0]
  grad = grad or (lambda i, t, x: jnp.asarray(TABLE)[i, t])
  params, _, state = drive(algorithm, x0, grad, workers=workers, steps=steps)
  return np.asarray(params[:, 0]), state


def steps_of(params, rate=1.0):
  """Return the means that SGD applied: [steps, n]."""
  return -np.diff(np.concatenate([reference.problem(3, 6)[0][None], params]), axis=0) / rate


def test_a_traced_momentum_equals_a_constant_one():
  """A sweep traces the settings of a wrapper; its factory must not branch on their values."""

  def trained(name, momentum):
    algorithm = wrap(name, **({"share": 0.34} if name != "sign" else {}), momentum=momentum)

    def one(grads):
      params = jax.tree.map(jnp.zeros_like, grads)
      state = algorithm.init(W, params, jax.random.key(0))
      for _ in range(3):
        params, state = algorithm.local(W, grads, state, params)
      return flat_of(params)

    return jax.vmap(one, axis_name="w")(jax.vmap(tree_of)(jnp.asarray(TABLE[:, 0])))

  for name in ("sign", "ef21"):
    close(jax.jit(partial(trained, name))(0.8), jax.jit(partial(trained, name, 0.8))())


# ---- EF21


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_ef21_that_sends_all_averages_each_workers_momentum(momentum):
  params, _ = run(wrap("ef21", optax.sgd(1.0), share=1.0, momentum=momentum))
  v, expected = TABLE[:, 0], []
  for t in range(6):
    v = momentum * v + (1 - momentum) * TABLE[:, t]
    expected.append(v.mean(axis=0))
  close(steps_of(params), expected)


def test_the_estimate_of_ef21_is_the_mean_of_the_workers_estimates():
  _, state = run(wrap("ef21", share=0.34, momentum=0.8))
  (memory,) = state.memory.local
  for array in memory:
    close(array.mean, np.broadcast_to(np.mean(array.own, axis=0), array.own.shape))
    assert np.abs(array.momentum[0] - array.own).max() > 1e-3 or array.own.ndim == 1


def test_ef21_learns_a_constant_gradient_in_n_over_k_steps():
  """The kernel has 6 values, of which each worker sends 2 per step."""
  params, _ = run(wrap("ef21", optax.sgd(1.0), share=0.34, momentum=0.0), lambda i, t, x: jnp.asarray(TABLE)[i, 0])
  mean = TABLE[:, 0].mean(axis=0)
  applied = steps_of(params)
  close(applied[2:], np.broadcast_to(mean, (4, 7)))
  assert np.abs(applied[:2] - mean).max(axis=1).min() > 0.1


def test_ef21_reaches_the_optimum_of_different_losses():
  """Three quadratics on which sending only the largest value diverges; error feedback stops at a distance."""
  a = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
  b = np.array([[1.0, 2, -1], [-2, 1, 3], [1, -3, -2]])  # the mean is 0, so that the optimum is 0

  def grad(i, x):
    return 2 * a[i] * (a[i] @ x) + x / 2 + b[i]

  def distance(name, **hyper):
    algorithm = wrap(name, optax.sgd(0.02), share=0.34, **hyper)
    slopes, offsets = jnp.asarray(a), jnp.asarray(b)

    def one(rank):
      def step(carry, _):
        x, state = carry
        g = 2 * slopes[rank] * jnp.dot(slopes[rank], x) + x / 2 + offsets[rank]
        return algorithm.local(W, g, state, x), None

      x = jnp.ones(3)
      return jax.lax.scan(step, (x, algorithm.init(W, x, jax.random.key(0))), None, 1500)[0][0]

    return np.abs(jax.jit(jax.vmap(one, axis_name="w"))(jnp.arange(3))[0]).max()

  x = np.ones(3)
  for _ in range(200):
    sent = np.zeros((3, 3))
    for i in range(3):
      g = grad(i, x) - b[i]
      sent[i, np.argmax(np.abs(g))] = g[np.argmax(np.abs(g))]
    x = x - 0.02 * sent.mean(axis=0)
  assert np.abs(x).max() > 10
  assert distance("ef21", momentum=0.0) < 1e-6 < 1e-3 < distance("topk")


@pytest.mark.parametrize("workers", [1, 8])
def test_ef21_sends_as_many_bytes_as_topk(workers):
  sent = traffic.of(wrap("ef21", share=0.1), PARAMS, workers)
  assert sent.sent(sent.local) == 4 * (4 + 4) * (workers - 1)
  assert [op.kind for op in sent.local] == ["all_gather"] * (workers > 1)


# ---- deep gradient compression

KERNEL = slice(1, 7)  # the bias is sent whole


@pytest.mark.parametrize("masking", [True, False])
def test_dgc_that_sends_all_has_momentum_only_without_masking(masking):
  params, _ = run(wrap("dgc", share=1.0, momentum=0.8, masking=masking))
  plain, _ = run(build("sync_sgd", INNER["sgd"][0]))
  momentum, _ = run(build("sync_sgd", optax.sgd(0.1, momentum=0.8)))
  close(params[:, KERNEL], (plain if masking else momentum)[:, KERNEL])
  close(params[:, 0], momentum[:, 0])


def test_dgc_without_momentum_is_topk():
  close(run(wrap("dgc", share=0.34, momentum=0.0))[0], run(wrap("topk", share=0.34))[0])


def test_dgc_without_masking_sends_each_momentum_once():
  """The applied steps plus the mean of the unsent values are the sum of the workers' momenta."""
  params, state = run(wrap("dgc", optax.sgd(1.0), share=0.34, momentum=0.8, masking=False))
  u, total = 0.0, 0.0
  for t in range(6):
    u = 0.8 * u + TABLE[:, t]
    total = total + u
  (memory,) = state.memory.local
  unsent = np.reshape(memory[1].unsent, (3, 6)).mean(axis=0)
  close(steps_of(params).sum(axis=0)[KERNEL] + unsent, total.mean(axis=0)[KERNEL])
  close(np.reshape(memory[1].momentum, (3, 6)), u[:, KERNEL])
  assert memory[0].unsent is None and np.abs(unsent).max() > 0.1


@pytest.mark.parametrize("clip", [1.5, 100.0])
def test_dgc_clips_each_workers_gradient(clip):
  x0, grad = reference.problem(3, 6)
  params, _ = run(wrap("dgc", share=0.34, momentum=0.8, clip_norm=clip), grad)
  how = {"workers": 3, "steps": 6, "inner": INNER["sgd"][1]}
  expected = compression.sync_sgd(x0, grad, compressor=DGC(0.34, 0.8, clip=clip), **how)
  close(params, expected.params[:, 0])
  whole = compression.sync_sgd(x0, grad, compressor=DGC(0.34, 0.8), **how)
  assert np.allclose(params, whole.params[:, 0]) == (clip == 100)


class Staged(DGC):
  """The warm-up with two steps per stage."""

  calls = 0

  def __call__(self, x):
    self.share, self.calls = 0.34 ** (min(5, 1 + self.calls // 2) / 5), self.calls + 1
    return super().__call__(x)


@pytest.mark.parametrize("how", [None, ExecutionConfig("vmap", "scan", 12), ExecutionConfig("unroll", "unroll", 3)])
@pytest.mark.sampled(3)
def test_the_warm_up_of_dgc_has_five_stages(how):
  x0, grad = reference.problem(8, 12)
  expected = compression.sync_sgd(
    x0, grad, workers=8, steps=12, inner=INNER["sgd"][1], compressor=Staged(0.34, 0.8)
  ).params
  algorithm = wrap("dgc", share=0.34, momentum=0.8, stage_steps=2)
  if how is None:
    params, evaluate, _ = drive(algorithm, x0, grad, workers=8, steps=12, compiled=jax.jit)
    close(params, expected)
    close(evaluate, expected)
    return
  trainer = CompiledTrainer(algorithm, model(), make_workers(8, 2), how)
  result = record(trainer)
  close(result.evaluate, expected[np.array(result.ends) - 1, 0])


@pytest.mark.parametrize("workers", [1, 8])
def test_bytes_of_dgc(workers):
  """The bias is averaged whole; k values of the kernel with int32 indices go to all others."""
  params, bias = PARAMS | {"kernel": jax.ShapeDtypeStruct((100, 30), jnp.float32)}, 2 * 12 * (workers - 1) / workers
  sent = traffic.of(wrap("dgc"), params, workers)
  assert sent.sent(sent.local) == bias + 3 * 8 * (workers - 1)
  algorithm = wrap("dgc", stage_steps=4)
  sent, schedule = traffic.of(algorithm, params, workers), Schedule(algorithm.exchanges)
  assert not sent.local
  by_stage = [bias + k * 8 * (workers - 1) for k in (754, 189, 48, 12, 3)]  # 3000 * 0.001^(e / 5)
  assert [sent.sent(ops) for ops in sent.exchanges] == by_stage
  assert sent.nbytes(map(schedule.due, range(20))) == pytest.approx(4 * sum(by_stage))
  assert [schedule.due(step).exchange for step in (0, 3, 4, 15, 16, 10**6)] == [(0,), (0,), (1,), (3,), (4,), (4,)]
  assert schedule.cycle(10) == schedule.cycle(20) == (0, 1)  # ended stages do not lengthen the cycle


def test_a_period_of_first_steps_ends():
  period, traced = FirstSteps(3), jax.jit(lambda k: FirstSteps(3)(k))
  assert [int(traced(k)) for k in range(5)] == [period(k) for k in range(5)]
  assert period == FirstSteps(3) and [period(k) == 1 for k in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize(
  "inner, names",
  [
    (optax.sgd(0.1), []), (optax.sgd(0.1, momentum=0.9), ["TraceState"]), (optax.rmsprop(0.1), []),
    (optax.adamw(0.1), ["ScaleByAdamState"]), (optax.lion(0.1), ["ScaleByLionState"]),
    (optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9), ["TraceState"]), (optax.adan(0.1), ["ScaleByAdanState"]),
    (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(optax.linear_schedule(1, 0, 9))), []),
    (optax.contrib.muon(0.1), ["MuonState", "ScaleByAdamState"]),
  ],
)  # fmt: skip
def test_optimizers_with_momentum_are_refused(inner, names):
  params = {"mu": jnp.zeros((2, 3)), "trace": jnp.zeros(2)}
  assert sorted(momenta(jax.eval_shape(inner.init, params))) == names
  for more in ({}, {"stage_steps": 3}):
    if not names:
      traffic.of(wrap("dgc", inner, **more), params, 2)
      continue
    with pytest.raises(ValueError, match=r"^dgc\.algorithm must have an optimizer without momentum.*State"):
      traffic.of(wrap("dgc", inner, **more), params, 2)


@pytest.mark.parametrize("name", ["pipe_sgd", "diloco", "easgd"])
def test_dgc_accepts_only_means_in_local_steps(name):
  with pytest.raises(ValueError, match=r"^dgc\.algorithm must average only gradients") as refused:
    traffic.of(wrap("dgc", base=name), {"x": jnp.zeros(7)}, 8)
  assert "\n" not in str(refused.value)
