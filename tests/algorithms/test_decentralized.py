"""Gossip for workers with different data: invariants, fixed points, special cases and bytes, in float64."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.quadratics import X0, P, gradient, problem
from helpers.twins import INNER, build, close, drive, flat_of, lenient, tree_of
from reference import collective as reference
from reference.decentralized import mix
from reference.gossip import mixing_matrix

from ddl.as_optax import as_optax, consensus
from ddl.config import default_experiment
from ddl.engine import traffic

pytestmark = pytest.mark.usefixtures("x64")

STARTS = np.random.default_rng(1).normal(size=(8, 7))
IDENTITY = {"compressor": "topk", "share": 1.0, "consensus_rate": 1.0}  # CHOCO-SGD without compression
COMPLETE = {"graph": "exponential"}  # with three workers


def run(algorithm, workers=8, steps=8, x0=None, grad=None):
  start, default = reference.problem(workers, steps)
  return drive(algorithm, start if x0 is None else x0, grad or default, workers=workers, steps=steps)


def create(name, inner="momentum", workers=8, **hyper):
  return build(name, INNER[inner][0], workers, **hyper)


def same(one, other):
  for ours, expected in zip(one[:2], other[:2], strict=True):
    close(ours, expected)


def flat(tree):
  return np.asarray(jax.vmap(flat_of)(tree))


def zero(worker, step, x):
  return jnp.zeros_like(x)


@pytest.fixture
def directed(tmp_path):
  """Return a file with a doubly stochastic matrix that is not symmetric."""
  w = (3 * np.eye(8) + 2 * np.eye(8)[[1, 2, 0, 4, 3, 5, 7, 6]] + np.eye(8)[[3, 0, 5, 1, 7, 2, 4, 6]]) / 6
  np.save(tmp_path / "w.npy", w)
  return str(tmp_path / "w.npy")


# ---- fixed points on different data


@cache
def minimum():
  """Return the minimum of the mean of the workers' quadratics."""
  curvatures, slopes, *_ = problem(0.0)
  return np.linalg.solve(curvatures.mean(axis=0), slopes.mean(axis=0))


def distance_to_minimum(name, **hyper):
  """Return the largest distance of a worker, and that of the consensus model, after 2,000 steps of gradient descent."""
  tx = as_optax(build(name, optax.sgd(0.1), P, **hyper), "w")

  def worker(rank):
    params = tree_of(jnp.asarray(X0) + jnp.zeros_like(rank, float))

    def step(carry, _):
      params, state = carry
      updates, state = tx.update(tree_of(gradient(rank, 0, flat_of(params))), state, params)
      return (optax.apply_updates(params, updates), state), None

    params, state = jax.lax.scan(step, (params, tx.init(params)), length=2000)[0]
    return flat_of(params), flat_of(consensus(state, params))

  final = jax.jit(jax.vmap(worker, axis_name="w"))(jnp.arange(P))
  return [np.linalg.norm(np.asarray(x) - minimum(), axis=1).max() for x in final]


@pytest.mark.parametrize(
  "name, hyper",
  [
    ("gradient_tracking", {"graph": "one_peer_exponential"}), ("gradient_tracking", {"adapt_first": True}),
    ("exact_diffusion", {}), ("exact_diffusion", {"graph": "exponential", "consensus_rate": 1.0}), ("relay_sgd", {}),
  ],
)  # fmt: skip
def test_all_workers_reach_the_minimum_of_the_mean_loss(name, hyper):
  assert max(distance_to_minimum(name, **hyper)) < 1e-12


@pytest.mark.parametrize("name", ["d_psgd", pytest.param("quasi_global_momentum", marks=pytest.mark.slow)])
def test_other_gossip_has_a_biased_limit(name):
  worker, mean = distance_to_minimum(name)
  assert worker > 0.1 and mean > 0.01


# ---- gradient tracking


@pytest.mark.parametrize("adapt_first", [False, True])
@pytest.mark.parametrize("steps", [1, 6])
def test_the_mean_tracker_is_the_mean_gradient(directed, adapt_first, steps):
  state = run(create("gradient_tracking", graph=directed, adapt_first=adapt_first), steps=steps)[2]
  close(flat(state.tracker).mean(axis=0), flat(state.gradient).mean(axis=0))
  assert np.ptp(flat(state.tracker), axis=0).max() > 0.1


def test_tracking_on_the_complete_graph_is_synchronous_if_it_adapts_first():
  first, last = (run(create("gradient_tracking", workers=3, **COMPLETE, adapt_first=x), 3) for x in (True, False))
  synchronous = run(create("sync_sgd", workers=3), 3)
  same(first, synchronous)
  assert np.abs(last[0] - synchronous[0]).max() > 1e-3


@pytest.mark.parametrize("name", ["gradient_tracking", "exact_diffusion", "quasi_global_momentum"])
def test_equal_gradients_keep_the_workers_equal(name):
  """The methods then equal D-PSGD; quasi-global momentum only without momentum."""
  problem_of_0 = reference.problem(8, 8)[1]
  hyper = {"momentum": 0.0} if name == "quasi_global_momentum" else {}
  runs = [run(create(x, "adam", **more), grad=shared(problem_of_0)) for x, more in ((name, hyper), ("d_psgd", {}))]
  same(*runs)


@cache
def shared(grad):
  """Return the gradient of worker 0 for all workers."""
  return lambda worker, step, x: grad(0, step, x)


# ---- exact diffusion


@pytest.mark.parametrize("graph", ["ring", "one_peer_exponential"])
def test_the_corrections_add_up_to_zero(graph):
  correction = flat(run(create("exact_diffusion", "adam", graph=graph))[2].correction)
  close(correction.sum(axis=0), 0)
  assert np.abs(correction).max() > 0.01


@pytest.mark.parametrize("inner", ["momentum", "falling"])
def test_d2_on_the_complete_graph_is_synchronous(inner):
  """Also with a rate that changes, for which the papers' recursion is wrong."""
  d2 = create("exact_diffusion", inner, 3, **COMPLETE, consensus_rate=1.0)
  same(run(d2, 3), run(create("sync_sgd", inner, 3), 3))


def test_d2_is_the_papers_recursion():
  """x(1) = W (x(0) - eta g(0)); x(t+1) = W (2 x(t) - x(t-1) - eta (g(t) - g(t-1)))."""
  ours = run(create("exact_diffusion", "sgd", 5, consensus_rate=1.0), 5)[0]
  (x0, grad), w = reference.problem(5, 8), mixing_matrix("ring", 5, 0)
  old, x, old_gradient = np.array([x0] * 5), np.array([x0] * 5), np.zeros((5, 7))
  for t in range(8):
    g = np.array([grad(i, t, x[i]) for i in range(5)])
    x, old, old_gradient = mix(w, 2 * x - old - 0.1 * (g - old_gradient)), x, g
    close(ours[t], x)


@pytest.mark.parametrize(
  "graph, workers, rate, stable",
  [
    ("ring", 8, 1.0, False), ("ring", 8, 2 / 3, True), ("ring", 5, 1.0, True), ("torus", 8, 1.0, False),
    ("torus", 8, 0.5, True), ("exponential", 8, 0.5, True), ("exponential", 8, 1.0, False),
    ("exponential", 16, 0.5, False), ("one_peer_exponential", 8, 0.25, False), ("one_peer_exponential", 8, 0.5, True),
  ],
)  # fmt: skip
def test_graphs_on_which_differences_grow_are_refused(graph, workers, rate, stable):
  """The simulated recursion without gradients decays if and only if the factory accepts the graph."""
  x, c = np.random.default_rng(0).normal(size=(workers, 3)), np.zeros((workers, 3))
  for t in range(800):
    w = mixing_matrix(graph, workers, t)
    change = rate * (w @ (x + c) - (x + c))
    x, c = x + c + change, c + change
  assert (np.ptp(x, axis=0).max() < 1e-6) == stable
  if stable:
    create("exact_diffusion", workers=workers, graph=graph, consensus_rate=rate)
    return
  with pytest.raises(ValueError, match=rf"exact_diffusion.consensus_rate must .*={graph}, got {rate:g},") as refused:
    create("exact_diffusion", workers=workers, graph=graph, consensus_rate=rate)
  assert "\n" not in str(refused.value)


# ---- quasi-global momentum


def test_without_momentum_it_is_d_psgd_that_mixes_last():
  plain = run(create("quasi_global_momentum", momentum=0.0))
  same(plain, run(create("choco_sgd", **IDENTITY)))
  (x0, grad), w, v = reference.problem(8, 8), mixing_matrix("ring", 8, 0), 0.0
  x = np.array([x0] * 8)
  for t in range(8):
    v = 0.9 * v + np.array([grad(i, t, x[i]) for i in range(8)])
    x = mix(w, x - 0.05 * v)
    close(plain[0][t], x)


def test_momentum_on_the_complete_graph():
  """With equal models and mu = beta: m <- (1 - (1 - beta)^2) m + (1 - beta) g, which is not heavy ball."""
  beta, rate = 0.8, 0.1
  ours = run(
    create("quasi_global_momentum", "sgd", 3, **COMPLETE, momentum=beta, buffer_decay=beta, nesterov=False), 3
  )[0]
  x, grad = reference.problem(3, 8)
  m = 0.0
  for t in range(8):
    g = sum(grad(i, t, x) for i in range(3)) / 3
    x, m = x - rate * (beta * m + g), (1 - (1 - beta) ** 2) * m + (1 - beta) * g
    close(ours[t], np.broadcast_to(x, (3, 7)))


def pausing(step):
  """Return a rate that is 0 in some steps, computed in NumPy for an int."""
  if isinstance(step, (int, np.integer)):
    return 0.0 if 3 <= step < 5 else 0.05 + 0.01 * step
  rate = 0.05 + 0.01 * jnp.asarray(step, float)
  return jnp.where((step >= 3) & (step < 5), jnp.zeros_like(rate), rate)


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_schedule_changes_the_unit_of_the_momentum(nesterov):
  """With a constant rate, a record of it makes no difference."""
  hyper = {"graph": "ring", "momentum": 0.8, "buffer_decay": 0.7, "nesterov": nesterov}
  scheduled = lenient(optax.inject_hyperparams(optax.sgd)(pausing, momentum=0.9))
  cases = [
    (scheduled, reference.scheduled(reference.heavy_ball(1.0, 0.9), pausing), pausing),
    (*INNER["momentum"], lambda step: 0.05),
  ]
  x0, grad = reference.problem(8, 8)
  for inner, expected_inner, rate in cases:
    expected = reference.quasi_global_momentum(x0, grad, workers=8, steps=8, inner=expected_inner, rate=rate, **hyper)
    close(run(build("quasi_global_momentum", inner, **hyper))[0], expected.params)


def test_a_config_records_the_rate_of_its_schedule():
  experiment = default_experiment(
    algorithm={"name": "quasi_global_momentum"}, workers=8, steps=8, schedule={"name": "linear", "warmup": 3},
    optimizer={"name": "sgd", "learning_rate": 0.1, "momentum": 0.0},
  )  # fmt: skip

  def rate(step):
    return 0.1 * (step / 3 if step < 3 else 1 - (step - 3) / 5)

  x0, grad = reference.problem(8, 8)
  inner = reference.scheduled(reference.sgd(1.0), rate)
  hyper = {"graph": "ring", "momentum": 0.9, "buffer_decay": 0.9, "nesterov": True}
  expected = reference.quasi_global_momentum(x0, grad, workers=8, steps=8, inner=inner, rate=rate, **hyper)
  algorithm = experiment.make_algorithm()
  with jax.numpy_dtype_promotion("standard"):
    params = run(algorithm)[0]
  np.testing.assert_allclose(params, expected.params, rtol=1e-6, atol=1e-6)  # optax computes schedules in float32


def test_a_schedule_without_a_record_is_refused():
  for inner in (INNER["falling"][0], INNER["falling adam"][0]):
    with pytest.raises(ValueError, match=r"^quasi_global_momentum.inner must record .* got no record\.") as refused:
      run(build("quasi_global_momentum", inner), steps=1)
    assert "\n" not in str(refused.value)
  several = optax.chain(*[lenient(optax.inject_hyperparams(optax.sgd)(0.1))] * 2)
  with pytest.raises(ValueError, match=r"^quasi_global_momentum.inner must record at most one .* got 2\."):
    run(build("quasi_global_momentum", several), steps=1)


# ---- CHOCO-SGD


def test_without_compression_the_authors_order_is_d_psgd():
  ours = run(create("choco_sgd", "adam", **IDENTITY, adapt_first=False, graph="ring"))
  same(ours, run(create("d_psgd", "adam")))


@pytest.mark.parametrize("adapt_first", [True, False])
def test_without_consensus_the_workers_are_independent(adapt_first):
  ours = run(create("choco_sgd", "adam", consensus_rate=0.0, adapt_first=adapt_first))
  same(ours, run(create("independent", "adam")))


@pytest.mark.parametrize("graph", ["ring", "one_peer_exponential"])
@pytest.mark.parametrize("name, hyper", [("choco_sgd", {"compressor": x, "share": 0.34}) for x in ("sign", "topk")]
                         + [("exact_diffusion", {}), ("quasi_global_momentum", {})])  # fmt: skip
@pytest.mark.sampled(2)
def test_mixing_conserves_the_mean(name, hyper, graph):
  x, *_ = run(create(name, "sgd", graph=graph, **hyper), steps=5, x0=STARTS, grad=zero)
  close(x.mean(axis=1), np.stack([STARTS.mean(axis=0)] * 5))
  assert np.abs(x[-1] - STARTS).max() > 0.1


@pytest.mark.parametrize("compressor", ["sign", "topk"])
def test_the_differences_are_those_of_the_public_copies(directed, compressor):
  state = run(create("choco_sgd", graph=directed, compressor=compressor, share=0.34))[2]
  ((public, difference),) = ((flat(copies.public), flat(copies.difference)) for copies in state.copies)
  close(difference, np.load(directed) @ public - public)
  assert np.abs(difference).max() > 0.01


@pytest.mark.parametrize("hyper", [{"compressor": "sign"}, {"compressor": "topk", "share": 0.34}])
@pytest.mark.sampled(2)
def test_compressed_gossip_reaches_the_mean(hyper):
  """Without gradients the models become equal, although each message has an error."""
  algorithm = create("choco_sgd", "sgd", graph="exponential", consensus_rate=0.4, **hyper)
  x = run(algorithm, steps=60, x0=STARTS, grad=zero)[0]
  assert np.ptp(x[-1], axis=0).max() < 0.02 * np.ptp(STARTS, axis=0).max()


def test_unknown_compressors_are_refused():
  with pytest.raises(ValueError, match=r"^choco_sgd.compressor must be one of sign, topk, got 'int8'\.$"):
    create("choco_sgd", compressor="int8")


# ---- RelaySGD and Gossip-PGA


def test_relays_between_two_workers_are_means():
  same(run(create("relay_sgd", "adam", 2), 2), run(create("local_sgd", "adam", 2, period=1), 2))


@pytest.mark.parametrize("tree, diameter", [("chain", 7), ("binary_tree", 5)])
def test_a_relayed_model_arrives_after_its_distance(tree, diameter):
  """A worker receives all models after as many steps as the diameter of the tree has edges."""

  def counts(steps):
    state = run(create("relay_sgd", "sgd", tree=tree), steps=steps, grad=zero)[2]
    return sum(np.asarray(message.count) for message in state.received)

  assert counts(diameter - 1).min() < 7
  np.testing.assert_array_equal(counts(diameter), 7)


def test_a_changed_set_of_workers_restarts_without_messages():
  algorithm = create("relay_sgd")
  state = run(algorithm, steps=3)[2]
  after = algorithm.regroup(state)
  assert all(not np.any(x) for x in jax.tree.leaves(after.received))
  assert all(np.any(x) for x in jax.tree.leaves(state.received))
  jax.tree.map(np.testing.assert_array_equal, after.inner, state.inner)


def test_unknown_trees_are_refused():
  with pytest.raises(ValueError, match=r"^relay_sgd.tree must be one of chain, binary_tree, got 'star'\.$"):
    create("relay_sgd", tree="star")


@pytest.mark.parametrize("period, name, hyper", [(1, "local_sgd", {"period": 1}), (100, "d_psgd", {"graph": "ring"})])
def test_gossip_pga_is_between_local_sgd_and_d_psgd(period, name, hyper):
  same(run(create("gossip_pga", "adam", period=period)), run(create(name, "adam", **hyper)))


# ---- all


@pytest.mark.parametrize(
  "name, hyper, sent",
  [
    ("gradient_tracking", {}, [2 * 2 * 132]), ("gradient_tracking", {"adapt_first": True}, [2 * 2 * 132]),
    ("exact_diffusion", {"graph": "one_peer_exponential"}, [132] * 3), ("quasi_global_momentum", {}, [2 * 132]),
    ("relay_sgd", {}, [2 * 136]), ("gossip_pga", {}, [2 * 132, 2 * 132 * 7 / 8]),
    ("choco_sgd", {}, [2 * (4 + 4 + 1 + 4)]),  # 30 and 3 bits, and two means
    ("choco_sgd", {"compressor": "topk", "share": 0.1}, [2 * (3 * 8 + 8)]),  # 3 of 30 values and 1 of 3
  ],
)  # fmt: skip
def test_bytes_of_a_step(name, hyper, sent):
  """The kernel has 30 values and the bias 3, together 132 bytes."""
  params = {"kernel": jax.ShapeDtypeStruct((10, 3), jnp.float32), "bias": jax.ShapeDtypeStruct((3,), jnp.float32)}
  recorded = traffic.of(create(name, **hyper), params, 8)
  assert recorded.sent(recorded.local) == 0
  assert [recorded.sent(ops) for ops in recorded.exchanges] == sent
