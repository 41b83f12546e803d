"""Compiled runs against the NumPy references: float64, rtol 1e-12, momentum inside, in every layout and mode."""

from itertools import cycle
from typing import NamedTuple

import jax
import numpy as np
import pytest
from helpers.runs import HYPER, OUTER, STEPS, equals_twin, feed, make, record

from ddl.algorithms import COLLECTIVE
from ddl.engine.execution import ExecutionConfig
from ddl.engine.keys import worker_keys

pytestmark = pytest.mark.usefixtures("x64")


class Mode(NamedTuple):
  """The layout and execution of a run."""

  devices: int
  execution: ExecutionConfig
  conditional: bool = False  # decide all exchanges at run time, as if there were too many kinds of calls


MODES = {
  "2 unroll scan 1": Mode(2, ExecutionConfig("unroll", "scan", 1)),
  "1 vmap scan 12": Mode(1, ExecutionConfig("vmap", "scan", 12)),
  "2 map unroll 4": Mode(2, ExecutionConfig("map", "unroll", 4)),
  "2 vmap scan 5": Mode(2, ExecutionConfig("vmap", "scan", 5)),
  "8 unroll scan 12": Mode(8, ExecutionConfig("unroll", "scan", 12)),
  "8 vmap unroll 2": Mode(8, ExecutionConfig("vmap", "unroll", 2)),
  "2 vmap scan 5 conditional": Mode(2, ExecutionConfig("vmap", "scan", 5), conditional=True),
  "2 vmap unroll 5 conditional": Mode(2, ExecutionConfig("vmap", "unroll", 5), conditional=True),
}
UNROLLED = Mode(2, ExecutionConfig("unroll", "unroll", 5))  # takes long to compile
DELAYED = [
  "dasgd", "streaming_diloco", "d_psgd", "easgd", "eamsgd", "round_robin_easgd",
  "cocod", "overlap_local_sgd", "pipe_sgd", "acco", "eager_diloco", "sma", "overlap_sgp",
  "gradient_tracking", "choco_sgd",
]  # fmt: skip


def trainer_and_record(name, mode):
  trainer = make(name, mode.devices, mode.execution)
  # LLVM's optimization of many unrolled copies takes most of the time and does not affect what these tests check.
  before = jax.config.values["jax_disable_most_optimizations"]
  unrolled = mode.execution.steps == "unroll" or mode.execution.steps_per_call == 1
  jax.config.update("jax_disable_most_optimizations", before or unrolled)
  with pytest.MonkeyPatch.context() as patch:
    if mode.conditional:
      patch.setattr("ddl.engine.calls.MOST_KINDS", 0)
      assert len({call.kind for call in trainer.plan(0, STEPS, STEPS)}) == 1
    try:
      return trainer, record(trainer)
    finally:
      jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(3 * len(MODES))  # one mode for every third algorithm
def test_equals_the_reference(name, mode):
  equals_twin(*trainer_and_record(name, mode), name, "momentum", **HYPER.get(name, {}))


@pytest.mark.parametrize("name", ["sharded_sync_sgd", pytest.param("dasgd", marks=pytest.mark.slow)])
def test_unrolled_workers_and_steps_equal_the_reference(name):
  equals_twin(*trainer_and_record(name, UNROLLED), name, "momentum", **HYPER.get(name, {}))


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(len(COLLECTIVE))
def test_equals_the_reference_with_adam(name):
  trainer = make(name, 8, ExecutionConfig("vmap", "scan", 12), inner="adam")
  equals_twin(trainer, record(trainer), name, "adam", **HYPER.get(name, {}))


@pytest.mark.parametrize(
  "name, hyper",
  [
    ("dasgd", {"period": 2, "delay": 5, "keep": 0.25}),
    ("dasgd", {"period": 4, "delay": 0, "keep": 0.25}),
    ("dasgd", {"period": 4, "delay": 4, "keep": 0.25}),
    ("dasgd", {"period": 1, "delay": 1, "keep": 0.5}),
    ("dasgd", {"period": 5, "delay": 2, "keep": 0.0}),
    ("dasgd", {"period": 1, "delay": 3, "keep": 0.25}),
    ("post_local_sgd", {"period": 2, "start": 1000}),
    ("post_local_sgd", {"period": 4, "start": 1}),
    ("d_psgd", {"graph": "torus"}),
    ("easgd", {"alpha": 0.1, "period": 1}),
    ("local_sgd", {"period": 100}),
    ("streaming_diloco", {"period": 3, **OUTER, "fragments": 2, "delay": 3, "keep": 0.5}),
    ("streaming_diloco", {"period": 5, **OUTER, "fragments": 1, "delay": 0, "keep": 0.0}),
    ("d_psgd", {"graph": "ring"}),
  ],
)
@pytest.mark.sampled(7)
def test_other_hyperparameters_equal_the_reference(name, hyper):
  trainer = make(name, 2, ExecutionConfig("vmap", "scan", 3), **hyper)
  equals_twin(trainer, record(trainer, every=7), name, "momentum", **hyper)


@pytest.mark.parametrize("name, mode", [*zip(DELAYED, cycle(["1 vmap scan 12", "2 vmap scan 5", "8 unroll scan 12"]))])
@pytest.mark.sampled(len(DELAYED))
def test_overlap_changes_no_bit(name, mode, optimized):
  devices, execution, _ = MODES[mode]
  waiting, overlapped = (record(make(name, devices, execution._replace(overlap=overlap))) for overlap in (False, True))
  jax.tree.map(np.testing.assert_array_equal, waiting, overlapped)


@pytest.mark.parametrize("overlap", [True, False])
def test_without_overlap_the_steps_pass_the_barrier(overlap):
  """Equal bits could also mean that `overlap` has no effect."""
  trainer = make("easgd", 2, ExecutionConfig("vmap", "scan", 12, overlap))
  call, *_ = trainer.plan(0, STEPS, STEPS)
  fn = trainer.rounds.make_call(call.kind)
  keys, start = worker_keys(jax.random.key(1), range(8)), trainer.start(jax.random.key(0))
  text = fn.lower(start, feed(0, STEPS), np.int32(0), keys, ()).as_text()
  arrays = {line.count("tensor<") for line in text.splitlines() if "optimization_barrier" in line}
  carry, message = (len(jax.tree.leaves(x)) for x in (start, trainer.replication.messages))
  assert arrays == {message if overlap else message + carry}


@pytest.mark.parametrize("name", ["dasgd", "sharded_sync_sgd", "easgd", "d_psgd", "fedavg"])
@pytest.mark.sampled(5)
def test_a_second_run_has_the_same_bits(name):
  trainer, first = trainer_and_record(name, MODES["2 vmap scan 5"])
  jax.tree.map(np.testing.assert_array_equal, record(trainer), first)
  jax.tree.map(np.testing.assert_array_equal, trainer_and_record(name, MODES["2 vmap scan 5"])[1], first)  # recompiled
