"""Packed messages and unrolled steps, which accelerators overlap better, do not change the results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import HYPER, equals_twin, make, record
from helpers.twins import close

from ddl.engine import device_functions, execution
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import PackedGroup, Workers, make_workers
from ddl.group import Group

pytestmark = pytest.mark.usefixtures("x64")
DELAYED = ("dasgd", "cocod", "streaming_diloco", "overlap_local_sgd", "pipe_sgd", "easgd")


@pytest.fixture
def as_tpu(monkeypatch):
  monkeypatch.setattr(Workers, "platform", property(lambda workers: "tpu"))


@pytest.mark.parametrize("name", DELAYED)
@pytest.mark.sampled(3)
def test_programs_for_tpus_equal_the_reference(name, as_tpu):
  trainer = make(name, 2, ExecutionConfig("vmap", "scan", 12))
  equals_twin(trainer, record(trainer), name, "momentum", **HYPER[name])


def loops(trainer):
  """Lengths of the scans in the last call of a run."""

  def inside(jaxpr):
    for eqn in jaxpr.eqns:
      if eqn.primitive.name == "scan":
        yield eqn.params["length"]
      for value in jax.tree.leaves([*eqn.params.values()], is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
          yield from inside(getattr(value, "jaxpr", value))

  call = trainer.plan(0, 12, 12)[-1]
  call_of = trainer.rounds.make_call(call.kind)
  batch = {key: jax.ShapeDtypeStruct((1,), np.int32) for key in ("worker", "step")}
  return sorted(inside(jax.make_jaxpr(call_of)(*trainer.shapes(call, batch)).jaxpr))


@pytest.mark.slow
@pytest.mark.parametrize("most, left", [(8, []), (2, [3])])
def test_steps_during_a_message_are_unrolled_up_to_a_limit(most, left, monkeypatch):
  hyper = {"period": 6, "delay": 5, "keep": 0.25, "inner": "momentum"}  # launched after step 6, merged after step 11
  how = ExecutionConfig("vmap", "scan", 12)
  plain = make("dasgd", 2, how, **hyper)
  expected = record(plain)
  assert loops(plain) == [5]
  monkeypatch.setattr(device_functions, "UNROLLED", most)
  monkeypatch.setattr(Workers, "platform", property(lambda workers: "gpu"))
  other = make("dasgd", 2, how, **hyper)
  assert loops(other) == left
  close(record(other).params, expected.params)


def test_packed_means_and_sums_equal_those_of_the_leaves():
  tree = {"a": jnp.arange(24.0).reshape(4, 2, 3), "b": jnp.arange(4, dtype=jnp.int32), "c": jnp.ones((4, 5))}

  def both(group):
    of_worker = lambda tree: (group.sum(tree), group.mean({"a": tree["a"], "c": tree["c"]}))  # noqa: E731
    return jax.jit(jax.vmap(of_worker, axis_name="w"))(tree)

  jax.tree.map(np.testing.assert_array_equal, both(PackedGroup("w")), both(Group("w")))


def test_messages_of_workers_with_several_members_are_not_packed(as_tpu):
  assert isinstance(make_workers(4, 4).overlapped_group, PackedGroup)
  assert not isinstance(make_workers(4, 8, 2).overlapped_group, PackedGroup)


def test_unknown_compiler_options_are_dropped_with_a_warning():
  lowered = jax.jit(lambda x: x + 1).lower(1.0)
  with pytest.warns(UserWarning, match="xla_no_such_option"):
    assert execution.compiled(lowered, {"xla_no_such_option": "1"})(1.0) == 2.0
