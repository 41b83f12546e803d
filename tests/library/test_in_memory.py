"""Arrays, data sets and optax optimizers of this process as sections of a config."""

from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import pytest

import ddl
from ddl.config import in_memory
from ddl.config.comparison import LABELS, Comparison
from ddl.config.experiment import Experiment
from ddl.config.resolve import resolve
from ddl.config.sweep import Sweep
from ddl.errors import OptionError
from ddl.run import build

SMALL: dict[str, Any] = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 8, "eval_every": 4}


@pytest.fixture(autouse=True)
def as_users_run():
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def examples(count: int = 60, seed: int = 0):
  """Return x [count, 5] and classes y [count]."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=(count, 5)), rng.integers(0, 3, count)


def name_of(**section) -> str:
  ((kind, value),) = section.items()
  return resolve(None, {kind: value})[kind].name


def test_a_run_with_arrays_and_an_optax_optimizer_equals_one_by_name(tmp_path):
  run = ddl.train(data=examples(), optimizer=optax.sgd(0.1, 0.9), workdir=tmp_path / "a", **SMALL)
  named = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}
  other = ddl.train(data=ddl.from_arrays(*examples()), optimizer=named, workdir=tmp_path / "b", **SMALL)
  jax.tree.map(np.testing.assert_array_equal, run.params, other.params)
  assert "learning_rate" not in run.config["optimizer"]
  # A call with equal objects resumes the run, and one with others does not.
  resumed = partial(ddl.train, workdir=tmp_path / "a", options=ddl.RunOptions(resume=True), **SMALL)
  assert resumed(data=examples(), optimizer=optax.sgd(0.1, 0.9)).step == 8
  for seed, rate in ((0, 0.2), (1, 0.1)):
    with pytest.raises(ValueError, match="a different config"):
      resumed(data=examples(seed=seed), optimizer=optax.sgd(rate, 0.9))


def test_names_depend_only_on_the_content():
  assert name_of(data=examples()) == name_of(data=examples()) != name_of(data=examples(seed=1))
  assert name_of(optimizer=optax.adam(1e-2)) == name_of(optimizer=optax.adam(1e-2))
  schedules = [optax.cosine_decay_schedule(0.1, steps) for steps in (10, 20)]
  names = [name_of(optimizer=optax.sgd(rate)) for rate in (0.1, 0.2, *schedules)]
  noise = [
    optax.chain(optax.add_decayed_weights(1e-4, {"kernel": mask, "bias": True}), optax.sgd(0.1)) for mask in (0, 1)
  ]
  names += [name_of(optimizer=optimizer) for optimizer in noise]
  assert len({*names}) == len(names)


def test_an_object_of_another_process_is_an_error():
  config = resolve(None, {"data": examples()})
  delattr(in_memory, config.data.name.rpartition(":")[2])
  with pytest.raises(OptionError) as error:
    Experiment.from_config(config).make_part("data")
  assert error.value.option == "config.data.name" and "again" in error.value.advice


@pytest.mark.parametrize(
  ("option", "compare"),
  [
    ("keys of config.compare.grid", {"algorithms": ["sgp"], "grid": {"optimizer.learning_rate": (0.1, 0.2)}}),
    (f"{LABELS}['a'].optimizer.learning_rate", {"algorithms": {"a": {"optimizer": {"learning_rate": 0.3}}}}),
  ],
)
def test_a_comparison_cannot_change_the_rate_of_an_optax_optimizer(option, compare):
  with pytest.raises(OptionError) as error:
    Comparison.from_config(resolve(None, {"optimizer": optax.adam(1e-2), "compare": compare}))
  assert error.value.option == option


def test_an_invalid_data_set_is_one_line():
  def take(indices):
    raise OSError("unplugged")

  data = ddl.from_arrays(*examples())
  for wrong in (data._replace(train=data.train._replace(take=take)), data._replace(test=None)):
    with pytest.raises(OptionError):
      Experiment.from_config(resolve(None, {"data": wrong}))
      build.load(Experiment.from_config(resolve(None, {"data": wrong})))


def test_an_optimizer_with_labels_for_other_parameters_works():
  labels = {"Dense_0": "a", "Dense_1": "b"}
  optimizer = optax.multi_transform({"a": optax.sgd(0.1), "b": optax.sgd(0.0)}, labels)
  names = [name_of(optimizer=optimizer) for _ in range(2)]
  experiment = Experiment.from_config(resolve(None, {"optimizer": optimizer}))
  assert experiment.make_optimizer() is optimizer and names[0] != names[1]


def test_an_optax_optimizer_takes_no_schedule():
  with pytest.raises(OptionError) as error:
    Experiment.from_config(resolve(None, {"optimizer": optax.adam(1e-2), "schedule": "cosine"}))
  assert error.value.option == "config.schedule"


def test_an_optax_optimizer_cannot_be_swept_or_passed_to_other_processes(tmp_path):
  config = resolve(None, {"optimizer": optax.adam(1e-2), "compare": {"algorithms": ["sync_sgd"]}})
  with pytest.raises(OptionError, match="by name or as a function"):
    Sweep.from_config(config)
  options = ddl.RunOptions(max_restarts=1)
  with pytest.raises(OptionError) as error:
    ddl.train(optimizer=optax.adam(1e-2), options=options, workdir=tmp_path / "a", **SMALL)
  assert error.value.option == "max_restarts"
