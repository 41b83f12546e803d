"""Settings that a label of a comparison inherits from the config, and the names of user-defined functions in it."""

import pickle
import re

import pytest

from ddl.algorithms import COLLECTIVE
from ddl.config import base, custom
from ddl.config.comparison import Comparison, variants
from ddl.config.resolve import resolve
from ddl.config.unread_keys import check_taken
from ddl.errors import OptionError
from ddl.names import short_name
from experiments.command_line import config_flag


def heavy(inner, *, period: float = 4, beta: float = 0.9):
  """Build a user-defined algorithm, whose period is a float, unlike ddl's."""
  del beta
  return COLLECTIVE["local_sgd"].factory(inner, period=int(period))


SPEC = COLLECTIVE["local_sgd"]._replace(factory=heavy)
LABELS = {
  "mine": {},
  "theirs": {"algorithm": {"name": "easgd", "alpha": 0.1}},
  "synchronous": {"algorithm": "sync_sgd"},
  "heavier": {"algorithm": custom(heavy, beta=0.99)},
}


def compared(labels=LABELS, **changes):
  return Comparison.from_config(resolve(None, {"compare": {"algorithms": labels}, **changes}))


def test_experiments_are_pickled():
  """Ray and `--processes` send experiments to other processes."""
  experiments = compared().experiments
  assert pickle.loads(pickle.dumps(experiments)) == experiments


def test_labels_inherit_settings_that_their_algorithm_reads():
  for algorithm, expected in (
    ({"name": "dasgd", "delay": 1, "keep": 0.5, "period": 2}, {"delay": 1, "keep": 0.5, "period": 2}),
    (custom(heavy, beta=0.5, period=2), {"beta": 0.5, "period": 2}),
  ):
    result = compared(algorithm=algorithm, optimizer={"name": "adam", "b1": 0.8, "learning_rate": 0.02}).experiments
    settings = {label: dict(experiment.algorithm.settings) for label, experiment in result.items()}
    assert settings["theirs"] == {"period": 2, "alpha": 0.1} and settings["synchronous"] == {}
    assert settings["heavier"] == {"period": 2, "beta": 0.99}
    assert settings["mine"] == expected
    assert all(experiment.optimizer.b1 == 0.8 for experiment in result.values())
  other = compared({"sgd": {"optimizer": {"name": "sgd"}}}, optimizer={"name": "adam", "b1": 0.8, "weight_decay": 0.1})
  assert other.experiments["sgd"].optimizer.get("b1") is None
  assert other.experiments["sgd"].optimizer.weight_decay == 0.1


def test_resolve_keeps_settings_that_the_new_algorithm_reads():
  mine = resolve(None, {"algorithm": custom(heavy, beta=0.5, period=2)})
  config = resolve(mine, {"algorithm": "easgd"})
  assert (config.algorithm.name, config.algorithm.period, config.algorithm.get("beta")) == ("easgd", 2, None)
  assert resolve(config, {"algorithm": heavy}).algorithm.period == 2 and mine.algorithm.beta == 0.5


def test_settings_that_no_algorithm_reads_are_refused():
  with pytest.raises(ValueError, match=r"label 'synchronous': .*config\.algorithm\.alpha must be unset"):
    compared({"synchronous": {"algorithm": {"name": "sync_sgd", "alpha": 0.1}}})
  with pytest.raises(ValueError, match=r"config\.algorithm\.alpha must be unset"):  # sync_sgd does not read it either
    compared({"a": {"algorithm": "local_sgd"}}, algorithm={"name": "sync_sgd", "alpha": 0.1})
  result = compared({"a": {"algorithm": "local_sgd"}}, algorithm={"name": "easgd", "alpha": 0.1}).experiments
  check_taken("compare", ["algorithm.period", "algorithm.name", "steps", "times.jitter"], result.values())
  with pytest.raises(OptionError, match=r"config\.algorithm\.alpha must be unset for compare, .*local_sgd"):
    check_taken("compare", ["algorithm.alpha"], result.values())


def test_short_names():
  names = {
    "sync_sgd": "sync_sgd", "/a/mine.py:net": "net", "/a/mine.py:SPEC": "mine", "pack.mine:SPEC": "mine",
    "/a/mine.py:FAST_SPEC": "FAST", "/a/pack/__init__.py:model": "pack", "__main__:SPEC": "SPEC", "m.py:slow": "slow",
  }  # fmt: skip
  assert {name: short_name(name) for name in names} == names
  config = resolve(None, {"algorithm": custom(SPEC, beta=0.5)})
  assert config.algorithm.name.endswith("test_labels.py:SPEC")
  config.compare.grid = (("workers", (1, 2)), ("algorithm.name", (config.algorithm.name, "local_sgd")))
  created = Comparison.from_config(config)
  assert [*created.experiments] == [
    "test_labels, workers 1, algorithm test_labels", "test_labels, workers 1, algorithm local_sgd",
    "test_labels, workers 2, algorithm test_labels", "test_labels, workers 2, algorithm local_sgd",
  ]  # fmt: skip
  assert created.first.label == "test_labels"
  assert len(Comparison.from_config(config, ["test_labels"]).experiments) == 4


def test_misspelt_setting():
  """The error lists only the settings of the named algorithm."""
  for call in (
    lambda: compared({"a": {"algorithm": {"name": "dasgd", "perod": 3}}}),
    lambda: resolve(None, {"algorithm": {"name": "dasgd", "perod": 3}}),
    lambda: config_flag.read("train", ["--config.algorithm.perod=3", "--config.algorithm.name=dasgd"], base()),
  ):
    with pytest.raises(OptionError) as error:
      call()
    assert error.value.option.endswith(".perod") and error.value.advice == "Did you mean 'period'?"
    known = re.findall(r"\w+", error.value.condition.rpartition("with dasgd:")[2])
    assert sorted(known) == ["delay", "keep", "name", "period"]


def test_labels_with_commas_are_quoted():
  labels = {"a, fast": {"steps": 100}, "b": {}}
  with pytest.raises(ValueError, match='"a, fast": '):
    compared(labels)
  with pytest.raises(ValueError, match='one of "a, fast", b'):
    Comparison.from_config(resolve(None, {"compare": {"algorithms": labels}}), ["c"])


def test_label_may_unset_a_key_that_its_algorithm_lacks():
  result = variants(resolve(None, {"algorithm": custom(heavy), "compare": {"algorithms": {
    "a": {"algorithm": {"name": "sync_sgd", "beta": None}}}}}))  # fmt: skip
  assert result["a"].algorithm.name == "sync_sgd"
