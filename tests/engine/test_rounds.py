"""The compiled rounds against the NumPy twins: float64, rtol 1e-12, on every layout, momentum inside."""

from functools import cache

import jax
import numpy as np
import pytest
from helpers.runs import HYPER, OUTER, STEPS, equals_twin, feed, make, record

from ddl.algorithms import COLLECTIVE
from ddl.engine.execution import ExecutionConfig
from ddl.engine.rounds import worker_keys

pytestmark = pytest.mark.usefixtures("x64", "optimized")  # many of its tests compare bits

LAYOUTS = [  # devices, gradients, steps, steps per call
  (1, ExecutionConfig("unroll", "scan", 1)),
  (1, ExecutionConfig("vmap", "scan", 12)),
  (2, ExecutionConfig("map", "unroll", 4)),
  (2, ExecutionConfig("vmap", "scan", 5)),
  (8, ExecutionConfig("unroll", "scan", 12)),
  (8, ExecutionConfig("vmap", "unroll", 2)),
]
UNROLLED = (2, ExecutionConfig("unroll", "unroll", 5))  # dear to compile
DELAYED = [
  "dasgd", "streaming_diloco", "d_psgd", "easgd", "eamsgd", "round_robin_easgd",
  "cocod", "overlap_local_sgd", "pipe_sgd", "eager_diloco", "sma", "overlap_sgp",
]  # fmt: skip


@cache
def trainer_and_record(name, devices, how):
  trainer = make(name, devices, how)
  # LLVM's optimization of many unrolled copies takes most of the time and changes nothing that these layouts test.
  before = jax.config.values["jax_disable_most_optimizations"]
  jax.config.update("jax_disable_most_optimizations", before or how.steps == "unroll" or how.steps_per_call == 1)
  try:
    return trainer, record(trainer)
  finally:
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("devices, how", LAYOUTS)
@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(29)
def test_equals_its_twin(name, devices, how):
  equals_twin(*trainer_and_record(name, devices, how), name, "momentum", **HYPER.get(name, {}))


@pytest.mark.parametrize("name", ["sharded_sync_sgd", "dasgd"])
def test_unrolled_equals_its_twin(name):
  equals_twin(*trainer_and_record(name, *UNROLLED), name, "momentum", **HYPER.get(name, {}))


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(29)
def test_equals_its_twin_with_adam(name):
  trainer = make(name, 8, ExecutionConfig("vmap", "scan", 12), inner="adam")
  equals_twin(trainer, record(trainer), name, "adam", **HYPER.get(name, {}))


@pytest.mark.parametrize(
  "name, hyper",
  [
    ("dasgd", {"period": 4, "delay": 0, "keep": 0.25}),
    ("dasgd", {"period": 4, "delay": 4, "keep": 0.25}),
    ("dasgd", {"period": 1, "delay": 1, "keep": 0.5}),
    ("dasgd", {"period": 5, "delay": 2, "keep": 0.0}),
    ("dasgd", {"period": 2, "delay": 5, "keep": 0.25}),
    ("dasgd", {"period": 1, "delay": 3, "keep": 0.25}),
    ("post_local_sgd", {"period": 2, "start": 1000}),
    ("post_local_sgd", {"period": 4, "start": 1}),
    ("easgd", {"alpha": 0.1, "period": 1}),
    ("local_sgd", {"period": 100}),
    ("streaming_diloco", {"period": 3, **OUTER, "fragments": 2, "delay": 3, "keep": 0.5}),
    ("streaming_diloco", {"period": 5, **OUTER, "fragments": 1, "delay": 0, "keep": 0.0}),
    ("d_psgd", {"graph": "torus"}),
    ("d_psgd", {"graph": "ring"}),
  ],
)
@pytest.mark.sampled(5)
def test_other_schedules_equal_the_twin(name, hyper):
  trainer = make(name, 2, ExecutionConfig("vmap", "scan", 3), **hyper)
  equals_twin(trainer, record(trainer, every=7), name, "momentum", **hyper)


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.parametrize("steps", ["scan", "unroll"])
@pytest.mark.sampled(11)
def test_calls_that_ask_what_is_due_equal_the_twin(name, steps, monkeypatch):
  """As where periods and pauses make too many kinds of calls: no call is compiled for its schedule."""
  monkeypatch.setattr("ddl.engine.calls.MOST_KINDS", 0)
  trainer = make(name, 2, ExecutionConfig("vmap", steps, 5))
  kept = record(trainer)
  assert len({call.kind for call in trainer.plan(0, STEPS, STEPS)}) == 1
  equals_twin(trainer, kept, name, "momentum", **HYPER.get(name, {}))


@pytest.mark.parametrize("name", DELAYED)
@pytest.mark.parametrize("devices, how", [LAYOUTS[1], LAYOUTS[3], LAYOUTS[4]])
@pytest.mark.sampled(29)
def test_overlap_off_changes_no_bit(name, devices, how):
  waiting = record(make(name, devices, how._replace(overlap=False)))
  jax.tree.map(np.testing.assert_array_equal, waiting, trainer_and_record(name, devices, how)[1])


@pytest.mark.parametrize("overlap", [True, False])
def test_overlap_off_waits(overlap):
  """Bitwise equal results could also mean that the flag does nothing: the steps' own values go through the barrier."""
  trainer = make("easgd", 2, ExecutionConfig("vmap", "scan", 12, overlap))
  call, *_ = trainer.plan(0, STEPS, STEPS)
  fn = trainer.rounds.make_call(call.kind)
  keys = worker_keys(jax.random.key(1), range(8))
  text = fn.lower(trainer.start(jax.random.key(0)), feed(0, STEPS), np.int32(0), keys, ()).as_text()
  together = [line.count("tensor<") for line in text.splitlines() if "optimization_barrier" in line]
  carry, message = (len(jax.tree.leaves(x)) for x in (trainer.start(jax.random.key(0)), trainer.replication.messages))
  assert set(together) == {message if overlap else message + carry}


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(8)
def test_the_same_layout_again_changes_no_bit(name):
  trainer, first = trainer_and_record(name, *LAYOUTS[3])
  jax.tree.map(np.testing.assert_array_equal, record(trainer), first)
  if name in ("dasgd", "sharded_sync_sgd"):  # compiled anew
    jax.tree.map(np.testing.assert_array_equal, record(make(name, *LAYOUTS[3])), first)
