"""`config.period_schedule`: QSR for a config's learning rate, user-defined functions, and algorithms that refuse it."""

from itertools import pairwise

import jax
import pytest

import ddl
from ddl.config import custom, default_experiment
from ddl.config.comparison import Comparison
from ddl.config.experiment import Experiment
from ddl.config.resolve import resolve
from ddl.errors import OptionError
from ddl.schedule import Schedule

QSR = {"name": "qsr", "alpha": 0.2}
COSINE = {"name": "cosine", "warmup": 6}


@pytest.fixture(autouse=True)
def standard_promotion():
  """Use standard type promotion, as users do; the schedules of optax need it."""
  with jax.numpy_dtype_promotion("standard"):
    yield


def experiment_of(**changes):
  settings = {"algorithm": {"name": "local_sgd", "period": 3}, "schedule": COSINE, "steps": 60, "period_schedule": QSR}
  return Experiment.from_config(resolve(None, settings | changes))


def averages(experiment):
  schedule = Schedule(experiment.make_algorithm().exchanges)
  return [t + 1 for t in range(experiment.steps) if schedule.due(t)]


def growing(period, rate, steps, *, by: int = 2):
  """Return periods that grow by `by` steps per round."""
  return lambda k: period + by * k


def test_the_periods_follow_the_learning_rate_of_the_config():
  """The peak is scaled to 0.1, so that the first period is 4."""
  experiment = experiment_of(optimizer={"learning_rate": 0.05}, rate_scaling="linear", base_batch=128)
  times = averages(experiment)
  assert times[:3] == [4, 8, 12] and times[-1] == 60
  gaps = [b - a for a, b in pairwise(times)]
  assert gaps[:-1] == sorted(gaps[:-1]) and max(gaps) > 6
  assert averages(experiment_of(period_schedule={"name": "constant"})) == [*range(3, 61, 3)]
  assert averages(experiment_of(period_schedule=QSR | {"alpha": 0.0})) == [*range(3, 61, 3)]


def test_the_periods_do_not_permit_rates_that_are_traced():
  assert not experiment_of().traceable("optimizer.learning_rate")
  assert experiment_of(period_schedule="constant").traceable("optimizer.learning_rate")


def test_a_user_defined_function_of_the_round():
  assert averages(experiment_of(period_schedule=custom(growing, by=5))) == [3, 11, 24, 42]


@pytest.mark.parametrize("name", ["sync_sgd", "cocod", "streaming_diloco", "async_local_sgd", "d_psgd"])
def test_algorithms_whose_period_cannot_vary_refuse(name):
  with pytest.raises(OptionError) as refused:
    default_experiment(algorithm={"name": name}, period_schedule=QSR)
  assert refused.value.option == "config.period_schedule" and name in str(refused.value)


@pytest.mark.parametrize(
  ("option", "changes"),
  [
    ("config.period_schedule.alpha", {"period_schedule": {"name": "qsr"}}),
    ("config.elastic", {"elastic": True}),
    ("config.outer_schedule", {"algorithm": {"name": "diloco", "period": 3}, "outer_schedule": {"name": "linear"}}),
  ],
)
def test_contradicting_settings_are_errors(option, changes):
  with pytest.raises(OptionError) as refused:
    experiment_of(**changes)
  assert refused.value.option == option


def test_a_grid_omits_the_schedule_for_algorithms_whose_period_cannot_vary():
  grid, names = {"period_schedule.name": ("constant", "growing")}, ["local_sgd", "sync_sgd"]
  grid["period_schedule.name"] = ("constant", custom(growing)["name"])
  labels = Comparison.from_config(resolve(None, {"compare": {"grid": grid, "algorithms": names}})).experiments
  assert [*labels] == ["local_sgd, period schedule constant", "local_sgd, period schedule growing", "sync_sgd"]


@pytest.mark.slow
def test_a_run(tmp_path):
  """Its traffic is that of the averages after steps 4, 11 and 12, of differences of 650 float32 parameters."""
  run = ddl.train(
    algorithm={"name": "diloco", "period": 2}, model="linear", schedule="cosine", period_schedule=QSR, workers=2,
    steps=12, eval_every=6, workdir=tmp_path / "run",
  )  # fmt: skip
  assert run.metrics.bytes_sent.tolist()[-1] == 3 * 650 * 4
