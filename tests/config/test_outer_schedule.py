"""`config.outer_schedule`: its length, user-defined functions, grids, and algorithms without an outer learning rate."""

import pytest

import ddl
from ddl.config import custom, default_experiment
from ddl.config.comparison import Comparison
from ddl.config.experiment import Experiment
from ddl.config.resolve import resolve
from ddl.errors import OptionError
from ddl.ranges import OuterRate

DILOCO = {"name": "diloco", "period": 10}
RECEIVED = []


def halved(rate, steps, *, workers, share: float = 0.5):
  """Return a share of the rate; record the number of steps and of workers."""
  RECEIVED.append((steps, workers))
  return lambda step: share * rate


def mine(inner, *, speed: OuterRate = 0.5, period: int = 5) -> ddl.Algorithm:
  """DiLoCo, with the schedule of its outer rate recorded."""
  RECEIVED.append(speed)
  return ddl.diloco(inner, period=period, outer_learning_rate=speed)


@pytest.mark.parametrize("name", ["sync_sgd", "local_sgd", "d_psgd", "async_sgd"])
@pytest.mark.parametrize("schedule", [{"name": "cosine"}, {"name": "constant", "warmup": 2}])
def test_an_algorithm_without_an_outer_rate_refuses_a_schedule(name, schedule):
  default_experiment(algorithm={"name": name}, outer_schedule={"name": "constant"})
  with pytest.raises(OptionError) as error:
    default_experiment(algorithm={"name": name}, outer_schedule=schedule)
  assert error.value.option == "config.outer_schedule" and name in str(error.value)


def test_a_warmup_must_be_shorter_than_the_number_of_outer_steps():
  settings = {"algorithm": DILOCO, "steps": 49}
  default_experiment(**settings, outer_schedule={"name": "linear", "warmup": 3})
  with pytest.raises(OptionError) as error:
    default_experiment(**settings, outer_schedule={"name": "linear", "warmup": 4})
  assert error.value.option == "config.outer_schedule.warmup with 4 outer steps"


@pytest.mark.parametrize("steps, outer_steps", [(45, 4), (9, 1)])
def test_a_user_defined_schedule_receives_the_number_of_outer_steps(steps, outer_steps):
  RECEIVED.clear()
  changes = {"algorithm": DILOCO, "outer_schedule": custom(halved, share=0.25), "steps": steps, "workers": 3}
  experiment = Experiment.from_config(resolve(None, changes))
  assert {*RECEIVED} == {(outer_steps, 3)} and experiment.outer_schedule.share == 0.25
  assert not experiment.traceable("algorithm.outer_learning_rate")  # the function may branch on its value


def test_a_user_defined_algorithm_receives_the_schedule():
  RECEIVED.clear()
  changes = {"algorithm": custom(mine), "outer_schedule": {"name": "linear"}, "steps": 20}
  Experiment.from_config(resolve(None, changes))
  (schedule,) = RECEIVED
  assert [float(schedule(step)) for step in range(5)] == [0.5, 0.375, 0.25, 0.125, 0.0]


def test_a_grid_omits_the_schedule_for_algorithms_without_an_outer_rate():
  grid, algorithms = {"outer_schedule.name": ("constant", "cosine")}, {"DiLoCo": DILOCO, "sync SGD": "sync_sgd"}
  result = Comparison.from_config(resolve(None, {"compare": {"grid": grid, "algorithms": algorithms}}))
  assert list(result.experiments) == ["DiLoCo, outer schedule constant", "DiLoCo, outer schedule cosine", "sync SGD"]


def test_equal_budgets_scale_the_outer_steps_of_a_schedule():
  schedule = {"name": "decay", "at": (4, 8), "warmup": 2}
  only = {"DiLoCo": {"algorithm": DILOCO}}
  changes = {"compare": {"grid": {"workers": (2, 4)}, "algorithms": only}, "outer_schedule": schedule}
  two, four = Comparison.from_config(resolve(None, changes | {"workers": 4, "steps": 100})).experiments.values()
  assert (four.steps, four.outer_schedule.at, four.outer_schedule.warmup) == (100, (4, 8), 2)
  assert (two.steps, two.outer_schedule.at, two.outer_schedule.warmup) == (200, (8, 16), 4)
