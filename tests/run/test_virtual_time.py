"""The clock and the record of a collective algorithm in virtual time."""

import jax
import numpy as np
import pytest

from ddl.config import default_experiment
from ddl.engine import traffic
from ddl.engine.injected import inject
from ddl.errors import OptionError
from ddl.events import lockstep
from ddl.run import virtual_time
from ddl.run.build import RunOptions, build, make_trainer


def test_lockstep_record_matches_the_clock_of_the_config(tmp_path):
  easgd, network = {"name": "easgd", "period": 4}, {"message_seconds": 0.01}
  config = default_experiment(algorithm=easgd, workers=4, steps=400, network=network)
  experiment = build(config)
  algorithm, params = experiment.algorithm, jax.eval_shape(experiment.model.init, jax.random.key(0))[0]
  charged = virtual_time.charges(config, traffic.of(algorithm, params, 4))
  assert charged[:2] == (None, (0.04,))
  result = virtual_time.lockstep_record(config, algorithm, charged)
  assert len(result.free) == virtual_time.ROUNDS * 4
  clock = virtual_time.lockstep_seconds(config, algorithm, charged)
  np.testing.assert_array_equal(result.released.max(axis=1), [clock(step) for step in range(1, len(result.free) + 1)])
  assert "all-reduce of all workers 40 ms" in virtual_time.describe(config)
  config = config.changed({"network": {"exchange_seconds": 0.05}})
  assert virtual_time.charges(config, traffic.of(algorithm, params, 4))[:2] == (None, (0.05,))
  assert "exchange of all workers 50 ms" in virtual_time.describe(config)
  config = config.changed({"times": {"slow": (1.0, 2.5, 2.5, 1.0)}})
  assert "2 of 4 workers 2.5 times slower" in virtual_time.describe(config)
  lockstep.save(tmp_path / "record", result)
  for loaded, saved in zip(lockstep.load(tmp_path / "record"), result, strict=True):
    np.testing.assert_array_equal(loaded, saved)


@pytest.mark.parametrize(
  "name, wrapper", [("edit", "none"), ("edit", "sparta"), ("fedprox", "none"), ("fednova", "topk")]
)
def test_a_step_that_a_worker_does_not_take_lasts_no_time(name, wrapper):
  """Workers of 10 and 35 ms that take 4 steps and 1 step of each round of 4."""
  config = default_experiment(
    algorithm={"name": name, "period": 4, "local_steps": (4, 1)}, wrapper={"name": wrapper}, workers=4, steps=9,
    times={"name": "constant", "seconds": 0.01, "slow": (1.0, 3.5, 1.0, 3.5)}, network={"exchange_seconds": 0.0},
  )  # fmt: skip
  components, rates = build(config), config.numbers(["optimizer.learning_rate"])
  params = jax.eval_shape(components.model.init, jax.random.key(0))[0]
  injected = inject(lambda values: config.with_numbers(values).make_algorithm(), rates)
  for algorithm in (components.algorithm, injected):
    charged = virtual_time.charges(config, traffic.of(algorithm, params, 4))
    released = virtual_time.lockstep_record(config, algorithm, charged).released
    first = [0.035] * 4 if wrapper == "sparta" else [0.01, 0.035, 0.01, 0.035]
    np.testing.assert_allclose(released[0], first)
    ends = [0.065, 0.13, 0.165] if wrapper == "sparta" else [0.04, 0.08, 0.115]  # sparta waits after every step
    np.testing.assert_allclose(released[[3, 7, 8]].max(axis=1), ends)


def test_elastic_training_refuses_steps_by_rank():
  config = default_experiment(
    algorithm={"name": "edit", "period": 4, "local_steps": (4, 1)}, workers=4, steps=8, elastic=True
  )
  with pytest.raises(OptionError, match=r"config\.elastic must be False with edit, got True\. Its workers take"):
    make_trainer(build(config), RunOptions())
