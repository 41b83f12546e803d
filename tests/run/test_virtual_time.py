"""The clock and the record of a collective algorithm in virtual time."""

import jax
import numpy as np

from ddl.config import default_experiment
from ddl.engine import traffic
from ddl.events import lockstep
from ddl.run import virtual_time
from ddl.run.build import build


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
