"""Wrappers with random rounding or few bits: error bounds, unbiasedness, votes and layouts of devices."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, W, build, close, drive
from helpers.wrappers import LOSSY, OF_DIFFERENCES, wrapped
from reference import collective as reference
from reference import compression
from scipy.fft import dctn

from ddl.algorithms import COLLECTIVE, WRAPPERS
from ddl.api import Model
from ddl.engine import traffic
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers

RANDOM = {
  "qsgd": {"levels": 7, "block": 512}, "int8": {"block": 512}, "e4m3": {"format": "e4m3", "block": 512},
  "e5m2": {"format": "e5m2", "block": 512},
}  # fmt: skip


@cache
def compressed_mean(wrapper, **hyper):
  """Return a compiled function (rows [workers, n], keys) -> compressed means of the rows [keys, workers, n]."""
  algorithm = WRAPPERS[wrapper].factory(build("sync_sgd", optax.sgd(1.0)), **hyper)

  def one(x, key):
    params = {"x": jnp.zeros_like(x)}
    new, _ = algorithm.local(W, {"x": x}, algorithm.init(W, params, key), params)
    return -new["x"]

  workers = jax.vmap(one, in_axes=(0, None), axis_name="w")
  return jax.jit(jax.vmap(workers, in_axes=(None, 0)))


def mean_of(wrapper, hyper, rows, keys=1):
  """Return the compressed mean of the workers' rows for each key: [keys, n]."""
  means = compressed_mean(wrapper, **hyper)(rows, jax.random.split(jax.random.key(1), keys))
  np.testing.assert_array_equal(means, np.broadcast_to(means[:, :1], means.shape))  # all workers receive the same
  return np.asarray(means[:, 0])


def random_mean(name, rows):
  return mean_of({"e4m3": "fp8", "e5m2": "fp8"}.get(name, name), RANDOM[name], rows, KEYS)


def quantum(name, v):
  """Return the maximum distance between the two code values next to each value of a block."""
  top = np.abs(v).max()
  return {
    "qsgd": lambda: np.full(v.shape, np.linalg.norm(v) / 7),
    "int8": lambda: np.full(v.shape, top / 127),
    "e4m3": lambda: np.maximum(np.abs(v) / 8, top / 448 * 2**-9),
    "e5m2": lambda: np.maximum(np.abs(v) / 4, top / 57344 * 2**-16),
  }[name]()


RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(3, 40)) * RNG.permutation(np.geomspace(1e-6, 1, 40))  # subnormal in e4m3 in each strip
KEYS = 4000
CODES = ["qsgd", "int8", "e4m3", pytest.param("e5m2", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", CODES)
def test_the_error_of_a_mean_is_bounded_by_the_mean_quantum(x64, name):
  """All but QSGD also round the mean, by up to one quantum."""
  error = np.abs(random_mean(name, VALUES) - VALUES.mean(axis=0))
  quanta = np.mean([quantum(name, v) for v in VALUES], axis=0)
  assert (error > quanta / 2).any()
  if name in ("e4m3", "e5m2"):
    quanta = quanta + quantum(name, np.abs(VALUES).mean(axis=0) + quanta)
  elif name == "int8":
    quanta = quanta + (np.abs(VALUES.mean(axis=0)) + quanta).max() / 127
  assert (error <= quanta).all()


@pytest.mark.parametrize("name", CODES)
def test_rounding_is_unbiased(x64, name):
  """Rounding with quantum q has a standard deviation of at most q / 2; 6 standard errors have a probability of 1e-9."""
  mean, result = VALUES.mean(axis=0), random_mean(name, VALUES)
  quanta = np.sqrt(sum(quantum(name, v) ** 2 for v in VALUES)) / 3
  if name != "qsgd":  # the mean is rounded too
    widest = np.mean([np.abs(v) + quantum(name, v) for v in VALUES], axis=0)
    quanta = np.sqrt(quanta**2 + quantum(name, widest) ** 2)
  assert (np.abs(result.mean(axis=0) - mean) <= 6 * quanta / 2 / np.sqrt(KEYS)).all()
  assert (result.std(axis=0) > 0).mean() > 0.4


@pytest.mark.parametrize("name", CODES)
def test_zeros_are_exact_and_non_finite_values_stay_non_finite(x64, name):
  assert (random_mean(name, np.zeros((3, 40))) == 0).all()
  for value in (np.nan, np.inf):
    rows = VALUES.copy()
    rows[1, 5] = value
    assert not np.isfinite(random_mean(name, rows)[:, 5]).any()


@pytest.mark.parametrize("format, kind", [("e4m3", jnp.float8_e4m3fn), ("e5m2", jnp.float8_e5m2)])
@pytest.mark.sampled(2)
def test_numbers_of_the_format_are_exact(x64, format, kind):
  numbers = np.arange(256, dtype=np.uint8).view(kind).astype(float)
  numbers = numbers[np.isfinite(numbers)]
  np.testing.assert_array_equal(mean_of("fp8", {"format": format, "block": 512}, numbers[None])[0], numbers)


# ---- signs


def vote(*rows, momentum=0.0):
  return mean_of("sign", {"momentum": momentum}, np.array(rows, float))[0].tolist()


def test_the_majority_decides_whatever_the_magnitudes():
  assert vote([9.0, -1.0, 1.0], [-1.0, -1.0, 5.0], [-1.0, 99.0, 2.0]) == [-1, -1, 1]


def test_zeros_and_ties_count_as_plus():
  assert vote([1.0, -2.0, 0.0], [-3.0, 2.0, -1.0]) == [1, 1, 1]
  assert vote([0.0, -1.0], [-1.0, 0.0], [-1.0, -1.0]) == [-1, -1]


@pytest.mark.parametrize("workers, size", [(1, 17), (2, 1), (8, 100), (11, 8)])
def test_votes_of_other_numbers_of_workers_and_values(workers, size):
  rows = np.random.default_rng(size).normal(size=(workers, size))
  assert vote(*rows) == np.where((rows < 0).sum(axis=0) * 2 > workers, -1, 1).tolist()


@pytest.mark.parametrize(
  "name", ["sync_sgd", "independent", "pipe_sgd", "local_sgd", "diloco", "easgd", "sharded_sync_sgd", "d_psgd"]
)
def test_sign_accepts_only_means_of_gradients_in_local_steps(name):
  algorithm = wrapped("sign", name)
  if name in ("sync_sgd", "independent"):
    traffic.of(algorithm, {"x": jnp.zeros(7)}, 8)
    return
  with pytest.raises(ValueError, match=r"^sign\.algorithm must") as refused:
    traffic.of(algorithm, {"x": jnp.zeros(7)}, 8)
  assert "\n" not in str(refused.value)


# ---- frequencies


def test_one_coefficient_per_chunk_represents_a_cosine(x64):
  """The matrix [8, 12] has chunks [4, 6] with cosines of different amplitudes."""
  y, x = np.mgrid[:8, :12]
  wave = (
    np.cos(np.pi * (2 * (y % 4) + 1) / 8) * np.cos(np.pi * (2 * (x % 6) + 1) * 2 / 12) * (1 + y // 4 + 3 * (x // 6))
  )
  assert (np.abs(dctn(wave[:4, :6], norm="ortho")) > 1e-9).sum() == 1
  close(mean_of("demo", {"decay": 0.9, "kept": 1, "chunk": 6}, wave[None])[0], wave)


def test_a_coefficient_is_the_mean_over_its_senders(x64):
  rows = np.zeros((3, 2, 2))
  rows[0] = 4.0  # only the constant
  rows[1] = [[6.0, 6.0], [-6.0, -6.0]]  # only another frequency
  rows[2] = rows[1] / 3
  result = mean_of("demo", {"decay": 0.9, "kept": 1, "chunk": 2}, rows)[0]
  close(result, rows[0] + (rows[1] + rows[2]) / 2)


def test_sent_coefficients_are_removed_from_the_momentum(x64):
  """The DCT of [a, b] is [a + b, a - b] / sqrt 2; the sum of [3, 1] is sent first, then the decayed difference."""
  decay = 0.5
  algorithm = WRAPPERS["demo"].factory(build("sync_sgd", optax.sgd(1.0)), decay=decay, kept=1, chunk=2)
  lifted = jax.jit(jax.vmap(lambda g, state: algorithm.local(W, g, state, jnp.zeros(2)), axis_name="w", axis_size=2))
  state = jax.vmap(lambda x: algorithm.init(W, x, jax.random.key(0)), axis_name="w")(jnp.zeros((2, 2)))
  for gradient, sent in [([3.0, 1.0], [2.0, 2.0]), ([0.0, 0.0], [decay, -decay]), ([0.0, 0.0], [0.0, 0.0])]:
    new, state = lifted(jnp.array([gradient] * 2), state)
    close(-new, [sent] * 2)


@pytest.mark.slow
def test_demo_with_a_sign_optimizer_is_the_authors_step(x64):
  """The step is x <- (1 - eta wd) x - eta sign(mean)."""
  (x0, grad), how = reference.problem(3, 6), LOSSY["demo"]
  tx = optax.chain(optax.scale_by_sign(), optax.add_decayed_weights(0.1), optax.scale(-0.05))
  params = drive(WRAPPERS["demo"].factory(build("sync_sgd", tx), **how), x0, grad, workers=3, steps=6)[0]

  def step(g, x):
    return -0.05 * (np.sign(g) + 0.1 * x)

  compressor = compression.DeMo(how["decay"], how["kept"], how["chunk"])
  expected = compression.sync_sgd(x0, grad, workers=3, steps=6, inner=lambda: step, compressor=compressor)
  close(params, expected.params)


# ---- shares of the parameters


@pytest.mark.parametrize("base", ["independent", "local_sgd"])
def test_sparta_with_share_one_is_local_sgd_of_period_one(x64, base):
  x0, grad = reference.problem(8, 6)
  expected = drive(build("local_sgd", INNER["momentum"][0], period=1), x0, grad, workers=8, steps=6)
  result = drive(wrapped("sparta", base, hyper={"sparta": {"share": 1.0}}), x0, grad, workers=8, steps=6)
  close(result[0], expected[0])
  close(result[1], expected[1])


@pytest.mark.parametrize("name", sorted(set(COLLECTIVE) - {"relay_sgd"}))  # which adds models of earlier steps
@pytest.mark.sampled(9)
def test_sparta_with_share_one_keeps_the_workers_equal(x64, name):
  x0, grad = reference.problem(8, 6)
  params = drive(wrapped("sparta", name, hyper={"sparta": {"share": 1.0}}), x0, grad, workers=8, steps=6)[0]
  close(params, np.broadcast_to(params[:, :1], params.shape))


# ---- any algorithm, any layout


REFUSED = (
  "sharded_sync_sgd", "d_psgd", "sgp", "overlap_sgp", "noloco", "hierarchical_sgd",
  "gradient_tracking", "exact_diffusion", "quasi_global_momentum", "choco_sgd", "distributed_lion", "sparseloco",
  "edit", "relay_sgd", "gossip_pga", "one_bit_adam",
)  # fmt: skip
ROUNDED = [("int8", {"block": 8}), ("fp8", LOSSY["fp8"]), ("qsgd", RANDOM["qsgd"])]
CASES = [(*ROUNDED[i % 3], name) for i, name in enumerate([name for name in COLLECTIVE if name not in REFUSED][::2])]


@pytest.mark.parametrize("wrapper, hyper, name", CASES)
@pytest.mark.sampled(10)
def test_algorithms_train_with_rounded_means(x64, wrapper, hyper, name):
  x0, grad = reference.problem(3, 4)
  result = drive(wrapped(wrapper, name, hyper={wrapper: hyper}), x0, grad, workers=3, steps=4)[0]
  assert np.isfinite(result).all()


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", [*OF_DIFFERENCES, "sign", "sparta"])
def test_the_layout_changes_nothing(x64, wrapper):
  """With 40 values the strips of 8 workers have several values."""

  def init(key):
    return {"x": jax.random.normal(key, (5, 8), jnp.float64)}, {}

  def loss(params, extra, batch, key):
    del batch  # the key differs between workers and steps
    return jnp.sum(params["x"] * jax.random.normal(key, (5, 8), jnp.float64)), extra

  def feed(first, steps):
    return {"x": np.zeros((8, steps, 1))}

  name = "independent" if wrapper == "sparta" else "sync_sgd"
  runs = []
  for devices in (1, 2):
    how = ExecutionConfig("vmap", "scan", 4)
    trainer = CompiledTrainer(wrapped(wrapper, name), Model(init, loss), make_workers(8, devices), how)
    carry = trainer.start(jax.random.key(0))
    for _, after, _ in trainer.run(carry, trainer.plan(0, 4, 4), feed, jax.random.key(1)):
      runs.append(np.asarray(after.params["x"])[:: 1 if wrapper == "sparta" else devices])
  assert [run.shape for run in runs] == [(8 if wrapper == "sparta" else 1, 5, 8)] * 2
  close(runs[1], runs[0])
