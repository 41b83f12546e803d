"""Messages sent by a background thread: the results equal the references, and steps run in the meantime."""

import threading
from itertools import cycle

import jax
import numpy as np
import pytest
from helpers.runs import HYPER, STEPS, equals_twin, feed, make, record

from ddl.engine import background_sends
from ddl.engine.execution import ExecutionConfig

pytestmark = pytest.mark.usefixtures("x64")

DELAYED = ["dasgd", "easgd", "overlap_sgp", "eager_diloco", "streaming_diloco", "cocod", "sma", "pipe_sgd"]
LAYOUTS = [(2, ExecutionConfig("vmap", "scan", 5)), (8, ExecutionConfig("unroll", "scan", 12))]


@pytest.fixture
def threads(monkeypatch):
  monkeypatch.setattr(background_sends, "is_needed", lambda *_: True)


@pytest.mark.parametrize("name, layout", [*zip(DELAYED, cycle(LAYOUTS))])
@pytest.mark.sampled(len(DELAYED))
def test_equals_the_reference_and_overlap_changes_no_bit(name, layout, threads, optimized):
  devices, how = layout
  trainer = make(name, devices, how)
  result = record(trainer)
  equals_twin(trainer, result, name, "momentum", **HYPER.get(name, {}))
  jax.tree.map(np.testing.assert_array_equal, result, record(make(name, devices, how._replace(overlap=False))))


def test_only_the_background_thread_communicates_and_nothing_is_compiled_twice(threads, monkeypatch):
  ran, finished = [], background_sends._finished
  monkeypatch.setattr(
    background_sends,
    "_finished",
    lambda run, *x: (ran.append((run, threading.current_thread().name)), finished(run, *x))[1],
  )
  trainer = make("dasgd", *LAYOUTS[1])
  record(trainer)
  programs = [program for program, communicates in trainer._background._programs.values() if communicates]
  assert {run for run, _ in ran} == {*programs} and len({name for _, name in ran}) == 1
  assert threading.current_thread().name not in {name for _, name in ran}
  count, seconds = len(trainer._background._programs), trainer.compile_seconds
  record(trainer)
  assert len(trainer._background._programs) == count and trainer.compile_seconds == seconds > 0


@pytest.mark.parametrize("overlap", [True, False])
def test_steps_run_while_a_message_is_in_flight(overlap, threads, monkeypatch):
  """The first message is delayed until steps have run after its launch, or until a timeout."""
  trainer = make("dasgd", 8, ExecutionConfig("unroll", "scan", 12, overlap))
  calls, finished = trainer._background, background_sends._finished
  launched, stepped, overlapped = threading.Event(), threading.Event(), []

  def launch(*args, original=calls._launch):
    launched.set()
    return original(*args)

  def steps(*args, original=calls._steps):
    result = original(*args)
    if launched.is_set():
      stepped.set()
    return result

  def delayed(run, *args):
    if launched.is_set():
      overlapped.append(stepped.wait(30 if overlap else 0.2))
    return finished(run, *args)

  monkeypatch.setattr(calls, "_launch", launch)
  monkeypatch.setattr(calls, "_steps", steps)
  monkeypatch.setattr(background_sends, "_finished", delayed)
  key = jax.random.key(0)
  for _ in trainer.run(trainer.start(key), trainer.plan(0, STEPS, STEPS), feed, key):
    pass
  assert overlapped[0] is overlap


@pytest.mark.parametrize("name", ["sync_sgd", "local_sgd", "dasgd"])
def test_one_process_needs_no_background_thread(name):
  assert make(name, 2, LAYOUTS[0][1])._background is None
