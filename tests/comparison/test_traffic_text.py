"""Descriptions of a worker's traffic, with sizes of a perceptron's parameters."""

import pytest

from ddl.comparison import record
from ddl.config.base import default_experiment
from ddl.run.build import build

BYTES = 4 * (64 * 16 + 16 + 16 * 10 + 10)


def described(**changes):
  experiment = default_experiment(model={"name": "mlp", "hidden": (16,)}, workers=4, **changes)
  return record.describe_traffic(build(experiment), experiment.spec.taxonomy.pattern)


@pytest.mark.parametrize(
  "algorithm, text",
  [
    ({"name": "sync_sgd"}, "at each step: all-reduce of 4.84 kB"),
    ({"name": "local_sgd", "period": 5}, "every 5 steps: all-reduce of 4.84 kB"),
    ({"name": "async_easgd", "period": 5}, "every 5 steps: 4.84 kB to the server and 4.84 kB back"),
    ({"name": "independent"}, "nothing"),
    (
      {"name": "hierarchical_sgd", "group_size": 2, "period": 2, "outer_period": 8},
      "every 2 steps: 2 messages to peers of 4.84 kB together; every 8 steps: all-reduce of 4.84 kB",
    ),
  ],
)
def test_messages_and_their_periods(algorithm, text):
  assert BYTES == 4840
  assert described(algorithm=algorithm)[1] == text


@pytest.mark.parametrize(
  "algorithm, text",
  [
    ({"name": "round_robin_easgd"}, "at each step: all-reduce of 4.84 kB from 1 worker"),
    ({"name": "fedavg", "share": 0.5}, "every 10 steps: all-reduce of 4.84 kB from 2 workers"),
    ({"name": "scaffold", "share": 0.25}, "every 10 steps: all-reduce of 9.68 kB from 1 worker"),
  ],
)
def test_a_sum_over_sampled_workers_includes_a_note(algorithm, text):
  assert described(algorithm=algorithm)[1] == f"{text}; {record.SAMPLED}"
  assert record.SAMPLED not in described(algorithm={"name": "fedavg", "share": 1.0})[1]


def test_a_compressed_algorithm_has_the_pattern_of_its_compressed_messages():
  assert described(algorithm={"name": "sync_sgd"})[0] == "all-reduce"
  pattern, text = described(algorithm={"name": "sync_sgd"}, wrapper={"name": "topk"})
  assert pattern == "all-gather" and "all-gather of " in text and "all-reduce" not in text
  assert described(algorithm={"name": "sync_sgd"}, wrapper={"name": "powersgd"})[0] == "all-reduce"


def test_one_worker_sends_nothing():
  experiment = default_experiment(algorithm={"name": "sync_sgd"}, workers=1)
  assert record.describe_traffic(build(experiment), "all-reduce") == (
    "all-reduce",
    "nothing, as there is only one worker",
  )
