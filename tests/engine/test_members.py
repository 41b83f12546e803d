"""Workers of several devices (members): the results equal those of one device for any sharding rules."""

from functools import cache
from itertools import cycle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.members import CASES, HOW, KEY, LAST, NETWORKS, feed, inner, network, one_device, trained
from helpers.runs import HYPER, STEPS, WORKERS, flat_rows, model, twin
from helpers.runs import feed as twin_feed
from helpers.twins import INNER, build, close, flat_of
from helpers.wrappers import BASE, as_started, wrapped, wrapper_and_reference
from jax.sharding import PartitionSpec

from ddl.algorithms import COLLECTIVE, WRAPPERS
from ddl.algorithms.matrices import hidden_matrices
from ddl.api import Source
from ddl.config.optimizers import OPTIMIZERS
from ddl.engine.checkpoint import Checkpoints
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.placement import Placement, gather
from ddl.engine.workers import make_workers
from ddl.models import MODELS
from ddl.run import metrics
from ddl.sharding import MEMBER, Rules


@pytest.mark.parametrize("workers, members", [(2, 4), (1, 8), (4, 2)])
@pytest.mark.parametrize(
  "name, sharding", [pytest.param(*case, marks=pytest.mark.slow) if case[0] == "vgg_a" else case for case in CASES]
)
@pytest.mark.sampled(24)
def test_members_give_the_result_of_one_device(x64, name, sharding, workers, members):
  trainer, carry = trained(name, workers, members, sharding)
  result = gather(trainer.consensus(carry).params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), result, one_device(name))


@cache
def three_steps(name, sharding):
  return trained(name, 2, 4, sharding, 3)


@pytest.mark.parametrize("name, sharding", [case for case in CASES[1:] if case[0] != "vgg_a"])
@pytest.mark.sampled(5)
def test_parameters_and_optimizer_state_are_sharded(name, sharding):
  _, carry = three_steps(name, sharding)
  whole = sum(x.nbytes for x in jax.tree.leaves((carry.params, carry.state))) / 2  # two rows
  share = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves((carry.params, carry.state)))
  assert share < (0.5 if name == "transformer" else 0.45) * whole
  momentum = [x.sharding for x in jax.tree.leaves(carry.state)]
  assert momentum == [x.sharding for x in jax.tree.leaves(carry.params)]


@pytest.mark.parametrize("name, devices", [*zip(COLLECTIVE, cycle([8, 4, 2]))])
@pytest.mark.sampled(16)  # one algorithm for each number of devices
def test_algorithms_over_members_equal_the_reference(x64, name, devices):
  """Two members per row, and one, two or four rows with several workers each."""
  algorithm = build(name, INNER["momentum"][0], WORKERS, **HYPER.get(name, {}))
  check_over_members(algorithm, devices, twin(name, "momentum", **HYPER.get(name, {})))


@pytest.mark.parametrize("wrapper, devices", [*zip(WRAPPERS, cycle([8, 4, 2]))])
@pytest.mark.sampled(6)
def test_wrappers_over_members_equal_the_reference(x64, wrapper, devices):
  """Each member has a part of the arrays from which a worker chooses the values to send."""
  history = wrapper_and_reference(wrapper, WORKERS, STEPS, as_started)[1]
  check_over_members(wrapped(wrapper, BASE.get(wrapper, "sync_sgd")), devices, history)


def check_over_members(algorithm, devices, history):
  rules = {"split": Rules(params=(("kernel", PartitionSpec(MEMBER)),))}
  trainer = CompiledTrainer(
    algorithm, model()._replace(rules=rules), make_workers(WORKERS, devices, 2),
    ExecutionConfig("vmap", "scan", 12, sharding="split"),
  )  # fmt: skip
  start = trainer.start(jax.random.key(0))  # the key of the references of wrappers
  assert start.params["kernel"].sharding.spec == PartitionSpec("worker", MEMBER)
  for _, last, _ in trainer.run(start, trainer.plan(0, STEPS, STEPS), twin_feed, KEY):
    carry = last
  own, consensus = trainer.replication.params, trainer.consensus(carry)
  params = jax.tree.map(lambda own, x: x if own else np.repeat(x, WORKERS // len(x), 0), own, gather(carry.params))
  close(flat_rows(params), history.params[-1])
  close(flat_of(gather(consensus.params)), history.evaluate[-1])


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp", "tensor"])
def test_members_share_the_matrices_that_muon_orthogonalizes(x64, sharding):
  algorithm, how = build("muloco", OPTIMIZERS["muon"](0.02), 2, period=3), ExecutionConfig("vmap", "scan", 7)
  with jax.numpy_dtype_promotion("standard"):
    one, two = (trained("mlp", 2, members, sharding, 7, algorithm, how) for members in (1, 2))
    results = [gather(trainer.consensus(carry).params) for trainer, carry in (one, two)]
  hidden = hidden_matrices(results[0])
  shared = jax.tree.map(lambda hidden, x: hidden and MEMBER in x.sharding.spec, hidden, two[1].params)
  assert any(jax.tree.leaves(shared))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), *results)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp", "tensor", "hybrid"])
def test_initial_parameters_do_not_depend_on_the_sharding(sharding):
  drawn = MODELS["mlp"](*NETWORKS["mlp"][:1], **NETWORKS["mlp"][1])
  trainer = CompiledTrainer(
    build("sync_sgd", inner(), 2), drawn, make_workers(2, 8, 4), HOW._replace(sharding=sharding)
  )
  result = gather(trainer.consensus(trainer.start(KEY)).params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), result, drawn.init(KEY)[0])


@pytest.mark.parametrize("sharding", ["fsdp", "tensor"])
@pytest.mark.sampled(2)
def test_the_metrics_of_a_sharded_model_equal_those_of_a_whole_one(monkeypatch, sharding):
  monkeypatch.setattr(metrics, "BATCH", 32)  # the last batch has 20 examples, not a multiple of the devices
  trainer, carry = three_steps("mlp", sharding)
  rng = np.random.default_rng(1)
  x, y = rng.normal(size=(84, 12)).astype(np.float32), rng.integers(8, size=84, dtype=np.int32)
  source = Source(84, lambda settings: {"x": x[settings], "y": y[settings]})
  result = trainer.consensus(carry)
  whole = result._replace(params=jax.tree.map(jnp.asarray, gather(result.params)))
  sharded, expected = (metrics.Evaluator(network("mlp"), source)([model])[0] for model in (result, whole))
  assert sharded.keys() == expected.keys() == {"loss", "accuracy"}
  np.testing.assert_allclose(sharded["loss"], expected["loss"], rtol=1e-5)
  assert sharded["accuracy"] == expected["accuracy"]


LAYOUTS = [(2, 1, "fsdp"), (4, 2, "tensor"), (8, 4, "fsdp"), (2, 2, "hybrid"), (1, 1, "fsdp")]


def two_workers(name):
  return build(name, inner(), 2, **HYPER.get(name, {}))


@cache
def whole_and_first_half(name):
  """Return the final parameters of a run, and (trainer, carry) after the first half on another layout."""
  trainer, carry = trained("mlp", 2, 4, "fsdp", LAST, two_workers(name))
  return gather(trainer.consensus(carry).params), trained("mlp", 2, 2, "fsdp", 5, two_workers(name))


@pytest.mark.slow
@pytest.mark.parametrize("devices, members, sharding", LAYOUTS)
@pytest.mark.parametrize("name", ["dasgd", "sync_sgd", "easgd"])
def test_a_checkpoint_resumes_on_other_devices_and_members(x64, tmp_path, name, devices, members, sharding):
  expected, (first, carry) = whole_and_first_half(name)
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(5, first.saved(carry), {}, wait=True)
  layout = make_workers(2, devices, members)
  trainer = CompiledTrainer(two_workers(name), network("mlp"), layout, HOW._replace(sharding=sharding))
  again = trainer.restored(checkpoints.carry(5, trainer.saved(trainer.start(jax.random.key(9)))))
  checkpoints.close()
  jax.tree.map(np.testing.assert_array_equal, gather(first.saved(carry)), gather(trainer.saved(again)))
  for _, after, _ in trainer.run(again, trainer.plan(5, LAST, LAST), feed("mlp", 2), KEY):
    last = after
  result = gather(trainer.consensus(last).params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), result, expected)


@pytest.mark.parametrize(
  "sharding, rules, words",
  [
    ("tensor", {}, r"sharding must be one of fsdp \(the rules of this model\), got 'tensor'"),
    ("mine", {"mine": Rules(params=(("kernel", PartitionSpec(None, MEMBER)),))}, "members must be one of 1, 3, 9 "),
    ("mine", {"mine": Rules(params=(("bias", PartitionSpec(None, MEMBER)),))}, "the parameter has shape [9]"),
  ],
)
def test_rules_that_do_not_fit_are_rejected(sharding, rules, words):
  def init(key):
    return {"kernel": jnp.zeros((4, 9)), "bias": jnp.zeros(9)}, {}

  settings = network("mlp")._replace(init=init, rules=rules)
  with pytest.raises(ValueError, match=words.replace("[", r"\[").replace("]", r"\]")):
    Placement(settings, make_workers(2, 4, 2), sharding)


@pytest.mark.parametrize(
  "count, devices, members, words",
  [
    (2, 6, 4, "devices must be one of 4, 8 for 2 workers of 4 members .*, got 6"),
    (3, None, 16, "16, 48"),
    (1, 1, 0, "members must be"),
  ],
)
def test_members_that_do_not_divide_the_devices_are_rejected(count, devices, members, words):
  with pytest.raises(ValueError, match=words):
    make_workers(count, devices, members)


def test_workers_that_do_not_spread_over_the_processes_are_rejected(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(
    ValueError, match=r"workers x members must be a multiple of the number of processes \(2\), got 3 x 1"
  ):
    make_workers(3)
