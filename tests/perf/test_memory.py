"""The memory model against sums by hand, and the largest batch against a search."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl.perf.layers import MOMENTUM, Layer, StepMemory, largest_batch, training_memory
from ddl.perf.units import bytes_text, seconds_text

NET = (
  Layer("conv1", 3, 8, (3, 3), (16, 16), (14, 14)),
  Layer("conv2", 8, 4, (3, 3), (7, 7), (5, 5), bias=False),
  Layer("dense", 100, 10),
)


def test_memory_by_hand():
  result = training_memory(NET, MOMENTUM)
  assert result.per_example == 4 * (3 * 256 + 8 * 196 + 4 * 25) + 4 * 10
  assert result.fixed == 4 * 4 * (3 * 8 * 9 + 8 + 8 * 4 * 9) + 4 * 4 * 1010
  assert result.total(2) == result.fixed + 2 * result.per_example
  assert result.fixed == 4 * 4 * sum(x.params for x in NET)


def test_half_precision():
  half, full = training_memory(NET, MOMENTUM._replace(value=2)), training_memory(NET, MOMENTUM)
  assert half.per_example == full.per_example / 2 and half.fixed == full.fixed  # the parameters stay in float32


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e4), st.floats(0, 1e4), st.floats(0, 1e7))
def test_largest_batch_equals_that_of_a_search(weights, classifier, maps, classifier_maps, room):
  memory = StepMemory(maps + classifier_maps, weights + classifier)
  limit = memory.total(1) + room
  result = largest_batch(memory, limit)
  assert memory.total(result) <= limit * (1 + 1e-12)
  assert memory.total(result + 1) > limit * (1 - 1e-12)


def test_a_batch_may_use_exactly_the_limit():
  memory = training_memory(NET, MOMENTUM)
  assert largest_batch(memory, memory.total(5)) == 5
  assert largest_batch(memory, memory.total(5) - 1) == 4


def test_too_little_memory_for_one_example_is_rejected():
  for limit in (0, -1, math.nan, training_memory(NET, MOMENTUM).total(1) - 1):
    with pytest.raises(ValueError, match=r"34.1 kB .34136 bytes."):
      largest_batch(training_memory(NET, MOMENTUM), limit)


def test_bytes_and_seconds_as_text():
  texts = [bytes_text(x) for x in (12, 1234, 1.2e6, 3.456e9, 80e12)]
  assert texts == ["12 bytes", "1.23 kB", "1.2 MB", "3.46 GB", "80 TB"]
  assert [seconds_text(x) for x in (0, 1.5e-6, 0.0123, 1.0, 345.6)] == ["0 us", "1.5 us", "12.3 ms", "1 s", "346 s"]
