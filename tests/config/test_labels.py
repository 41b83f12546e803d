"""What a label of a comparison takes over from the config, and how objects of one's own are called in it."""

import re

import pytest

from ddl.algorithms import COLLECTIVE
from ddl.config import base, own
from ddl.config.comparison import Comparison, variants
from ddl.config.resolve import resolve
from ddl.config.unread_keys import check_taken
from ddl.errors import OptionError
from ddl.names import short_name
from experiments.command_line import config_flag


def heavy(inner, *, period: float = 4, beta: float = 0.9):
  """An algorithm of one's own; its period has another type than those of ddl."""
  del beta
  return COLLECTIVE["local_sgd"].factory(inner, period=int(period))


SPEC = COLLECTIVE["local_sgd"]._replace(factory=heavy)
LABELS = {
  "mine": {},
  "theirs": {"algorithm": {"name": "easgd", "alpha": 0.1}},
  "synchronous": {"algorithm": "sync_sgd"},
  "heavier": {"algorithm": own(heavy, beta=0.99)},
}


def compared(labels=LABELS, **changes):
  return Comparison.from_config(resolve(None, {"compare": {"algorithms": labels}, **changes}))


def test_settings_of_what_a_label_replaces_stay_with_it():
  """A key that both read is taken over, whoever wrote the algorithm."""
  theirs, mine = {"delay": 1, "keep": 0.5, "period": 2}, {"beta": 0.5, "period": 2}
  for algorithm, expected in (({"name": "dasgd", **theirs}, theirs), (own(heavy, **mine), mine)):
    result = compared(algorithm=algorithm, optimizer={"name": "adam", "b1": 0.8, "learning_rate": 0.02}).experiments
    settings = {label: dict(each.algorithm.settings) for label, each in result.items()}
    assert settings["theirs"] == {"period": 2, "alpha": 0.1} and settings["synchronous"] == {}
    assert settings["heavier"] == {"period": 2, "beta": 0.99}
    assert settings["mine"] == expected
    assert all(each.optimizer.b1 == 0.8 for each in result.values())
  other = compared({"sgd": {"optimizer": {"name": "sgd"}}}, optimizer={"name": "adam", "b1": 0.8, "weight_decay": 0.1})
  assert other.experiments["sgd"].optimizer.get("b1") is None
  assert other.experiments["sgd"].optimizer.weight_decay == 0.1


def test_a_change_in_python_names_parts_by_the_same_rule():
  mine = resolve(None, {"algorithm": own(heavy, beta=0.5, period=2)})
  config = resolve(mine, {"algorithm": "easgd"})
  assert (config.algorithm.name, config.algorithm.period, config.algorithm.get("beta")) == ("easgd", 2, None)
  assert resolve(config, {"algorithm": heavy}).algorithm.period == 2 and mine.algorithm.beta == 0.5


def test_what_nobody_reads_is_still_refused():
  with pytest.raises(ValueError, match=r"label 'synchronous': .*config\.algorithm\.alpha must be unset"):
    compared({"synchronous": {"algorithm": {"name": "sync_sgd", "alpha": 0.1}}})
  with pytest.raises(ValueError, match=r"config\.algorithm\.alpha must be unset"):  # the base does not read it either
    compared({"a": {"algorithm": "local_sgd"}}, algorithm={"name": "sync_sgd", "alpha": 0.1})
  result = compared({"a": {"algorithm": "local_sgd"}}, algorithm={"name": "easgd", "alpha": 0.1}).experiments
  check_taken("compare", ["algorithm.period", "algorithm.name", "steps", "times.jitter"], result.values())
  with pytest.raises(OptionError, match=r"config\.algorithm\.alpha must be left out of compare: .*local_sgd"):
    check_taken("compare", ["algorithm.alpha"], result.values())


def test_short_names():
  names = {
    "sync_sgd": "sync_sgd", "/a/mine.py:net": "net", "/a/mine.py:SPEC": "mine", "pack.mine:SPEC": "mine",
    "/a/mine.py:FAST_SPEC": "FAST", "/a/pack/__init__.py:model": "pack", "__main__:SPEC": "SPEC", "m.py:slow": "slow",
  }  # fmt: skip
  assert {name: short_name(name) for name in names} == names
  config = resolve(None, {"algorithm": own(SPEC, beta=0.5)})
  assert config.algorithm.name.endswith("test_labels.py:SPEC")
  config.compare.grid = (("workers", (1, 2)), ("algorithm.name", (config.algorithm.name, "local_sgd")))
  created = Comparison.from_config(config)
  assert [*created.experiments] == [
    "test_labels, workers 1, algorithm test_labels", "test_labels, workers 1, algorithm local_sgd",
    "test_labels, workers 2, algorithm test_labels", "test_labels, workers 2, algorithm local_sgd",
  ]  # fmt: skip
  assert created.first.label == "test_labels"
  assert len(Comparison.from_config(config, ["test_labels"]).experiments) == 4


def test_a_misspelt_setting_is_told_those_that_are_read_here():
  for misspelt in (
    lambda: compared({"a": {"algorithm": {"name": "dasgd", "perod": 3}}}),
    lambda: resolve(None, {"algorithm": {"name": "dasgd", "perod": 3}}),
    lambda: config_flag.read("train", ["--config.algorithm.perod=3", "--config.algorithm.name=dasgd"], base()),
  ):
    with pytest.raises(OptionError) as caught:
      misspelt()
    assert caught.value.advice == "Did you mean 'period'?"
    known = re.findall(r"\w+", caught.value.condition.rpartition("with dasgd:")[2])
    assert sorted(known) == ["delay", "keep", "name", "period"]


def test_labels_with_commas_are_told_apart():
  labels = {"a, fast": {"steps": 100}, "b": {}}
  with pytest.raises(ValueError, match='"a, fast": '):
    compared(labels)
  with pytest.raises(ValueError, match='one of "a, fast", b'):
    Comparison.from_config(resolve(None, {"compare": {"algorithms": labels}}), ["c"])


def test_a_label_may_unset_what_it_no_longer_has():
  result = variants(resolve(None, {"algorithm": own(heavy), "compare": {"algorithms": {
    "a": {"algorithm": {"name": "sync_sgd", "beta": None}}}}}))  # fmt: skip
  assert result["a"].algorithm.name == "sync_sgd"
