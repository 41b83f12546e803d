"""`config.compare.grid`: labels, points, budgets of examples, and invalid grids."""

import contextlib
import json

import numpy as np
import pytest

from ddl.config import base, custom
from ddl.config.comparison import Comparison, recorded, restored
from ddl.config.resolve import resolve
from ddl.config.sweep import Sweep
from ddl.errors import OptionError
from ddl.names import Place, comparable, slug
from experiments.command_line import config_flag

LABELS = {
  "sync SGD": {"algorithm": {"name": "sync_sgd"}},
  "local SGD": {"algorithm": {"name": "local_sgd", "period": 10}},
}


def comparison_of(grid, labels=LABELS, only=(), **changes):
  return Comparison.from_config(resolve(None, {"compare": {"grid": grid, "algorithms": labels}, **changes}), only)


def refused(call, *words):
  """Assert that a call raises a ValueError of one line with these words."""
  with pytest.raises(ValueError) as error:
    call()
  text = str(error.value)
  assert "\n" not in text and all(word in text for word in words), text


def test_labels_and_places_of_all_points():
  result = comparison_of({"workers": (2, 4), "algorithm.period": (1, 16)})
  assert list(result.experiments) == [
    "sync SGD, workers 2", "sync SGD, workers 4", "local SGD, workers 2, period 1", "local SGD, workers 2, period 16",
    "local SGD, workers 4, period 1", "local SGD, workers 4, period 16",
  ]  # fmt: skip
  last = result.experiments["local SGD, workers 4, period 16"]
  assert (last.workers, last.algorithm.period) == (4, 16)
  assert result.place("local SGD, workers 4, period 16") == ("local SGD", {"workers": 4, "algorithm.period": 16})
  assert result.place("sync SGD, workers 2") == ("sync SGD", {"workers": 2})
  assert len({slug(label) for label in result.experiments}) == 6
  without = comparison_of({})
  assert list(without.experiments) == list(LABELS) and without.place("sync SGD") == ("sync SGD", {})


def test_steps_are_scaled_to_keep_the_number_of_examples():
  schedule = {"name": "decay", "at": (100, 300), "warmup": 20}
  result = comparison_of({"workers": (1, 3, 8)}, schedule=schedule, eval_every=40, steps=400, workers=8, batch=16)
  one, three, eight = list(result.experiments.values())[3:]
  assert (eight.steps, eight.eval_every, eight.schedule.at) == (400, 40, (100, 300))
  assert (one.steps, one.eval_every, one.schedule.at, one.schedule.warmup) == (3200, 320, (800, 2400), 160)
  assert three.steps == 1067 and three.eval_every == 107 and three.algorithm.period == 10
  batches = comparison_of({"batch": (8, 32)}, steps=400, batch=16)
  assert [experiment.steps for experiment in batches.experiments.values()] == [800, 200, 800, 200]


def test_a_single_value_of_steps_is_not_in_the_labels():
  result = comparison_of({"workers": (1, 32), "steps": (60,)}, schedule={"name": "cosine", "warmup": 6})
  assert list(result.experiments)[:2] == ["sync SGD, workers 1", "sync SGD, workers 32"]
  assert {(experiment.steps, experiment.schedule.warmup) for experiment in result.experiments.values()} == {(60, 6)}
  assert result.place("sync SGD, workers 32").point == {"workers": 32, "steps": 60}


def test_a_sweep_has_the_labels_and_places_of_the_comparison():
  grid = {"workers": (2, 4), "algorithm.period": (1, 16)}
  space = {"local SGD": {"optimizer": {"momentum": (0.0, 0.9)}}}
  config = resolve(None, {"compare": {"grid": grid, "algorithms": LABELS}, "sweep": {"space": space}})
  compared, swept = Comparison.from_config(config), Sweep.from_config(config)
  assert list(swept.experiments) == list(compared.experiments) and swept.places == compared.places
  for label, experiment in swept.experiments.items():
    assert experiment == compared.experiments[label].changed({"data": {"validation": 0.2}})
    keys = ["optimizer.momentum"] * (swept.places[label].group == "local SGD")
    assert list(swept.spaces[label]) == ["optimizer.learning_rate", *keys]
  for name, count in (("local SGD", 4), ("sync_sgd", 2), ("local SGD, workers 2, period 16", 1)):
    assert len(Sweep.from_config(config, [name]).experiments) == count


@pytest.mark.parametrize("key, value", [("algorithm.period", 3), ("optimizer.learning_rate", 0.1)])
def test_a_sweep_does_not_tune_the_keys_of_the_grid(key, value):
  config = {
    "compare": {"grid": {key: (value,)}, "algorithms": LABELS},
    "sweep": {"space": {"local SGD": {"period": [1, 2]}}},
  }
  with pytest.raises(OptionError) as error:
    Sweep.from_config(resolve(None, config))
  assert error.value.option == "keys of config.compare.grid" and error.value.value == key


@pytest.mark.parametrize("grid, is_valid", [({"workers": (1, 3, 8)}, True), ({"steps": (400, 800)}, False)])
def test_pruning_in_a_grid_needs_equal_shares_of_steps_up_to_rounding(grid, is_valid):
  config = {"compare": {"grid": grid, "algorithms": LABELS}, "sweep": {"pruning": True}, "steps": 400, "eval_every": 40}
  with contextlib.nullcontext() if is_valid else pytest.raises(OptionError, match="pruning"):
    shares = {e.eval_every / e.steps for e in Sweep.from_config(resolve(None, config)).experiments.values()}
    assert len(shares) == 2  # 40 of 400 and 107 of 1067 steps


def test_grid_without_labels_varies_the_config():
  result = comparison_of({"algorithm.period": (2, 4.0)}, {}, algorithm={"name": "local_sgd"})
  assert list(result.experiments) == ["local_sgd, period 2", "local_sgd, period 4"]


def test_names_in_a_grid_decide_which_keys_are_read():
  names = comparison_of({"algorithm.name": ("sync_sgd", "local_sgd")}, {"x": LABELS["local SGD"]}).experiments
  assert list(names) == ["x, algorithm sync_sgd", "x, algorithm local_sgd"]
  assert [e.algorithm.get("period") for e in names.values()] == [None, 10]
  grid = {"optimizer.momentum": (0.0, 0.9), "optimizer.name": ("sgd", "adam")}
  assert list(comparison_of(grid, {"x": {}}).experiments) == [
    "x, momentum 0, optimizer sgd", "x, optimizer adam", "x, momentum 0.9, optimizer sgd",
  ]  # fmt: skip


def test_only_selects_labels_groups_and_algorithms():
  grid = {"workers": (1, 2)}
  groups = ["local SGD, workers 1", "local SGD, workers 2"]
  for name, labels in (("local SGD", groups), ("local_sgd", groups), ("local SGD, workers 2", groups[1:])):
    assert list(comparison_of(grid, only=[name]).experiments) == labels
  refused(lambda: comparison_of(grid, only=["lokal SGD"]), "'local SGD'")


def test_expected_pairs_at_each_point():
  config = resolve(None, {"compare": {"grid": {"workers": (1, 2)}, "algorithms": LABELS}})
  config.compare.expected = (("local SGD", "sync SGD"),)
  pairs = [("local SGD, workers 1", "sync SGD, workers 1"), ("local SGD, workers 2", "sync SGD, workers 2")]
  assert Comparison.from_config(config).expected_labels == pairs


def test_comparable():
  def place(group, **point):
    return Place(group, point)

  assert comparable(place("a", workers=1, period=2), place("b", workers=1, period=2))
  assert comparable(place("a", workers=1), place("b", workers=1, period=2))  # a does not read the period
  assert not comparable(place("a", workers=1), place("b", workers=2))
  assert comparable(place("a", workers=1, period=2), place("a", workers=4, period=2))
  assert not comparable(place("a", workers=1, period=2), place("a", workers=4, period=4))
  assert comparable(place("a"), place("b"))


def by_workers(rate, steps, *, workers, power: float):
  """Scale the rate with the number of workers."""
  return rate * workers**power


def test_user_defined_schedule_receives_the_number_of_workers():
  schedule = custom(by_workers, power=0.5)
  result = comparison_of({"workers": (1, 4), "schedule.power": (0.5, 1.0)}, {"x": {}}, schedule=schedule).experiments
  rates = []
  for experiment in result.values():
    optimizer = experiment.make_optimizer()
    updates, _ = optimizer.update(np.ones(1), optimizer.init(np.ones(1)), np.ones(1))
    rates.append(-float(updates[0]))
  assert rates == pytest.approx([0.1, 0.1, 0.2, 0.4])  # workers 1, 1, 4, 4


@pytest.mark.parametrize(
  "grid, words",
  [
    ({"wrkers": (1,)}, ("'wrkers'", "'workers'")),
    ({"algorithm.perod": (1,)}, ("'algorithm.perod'", "'algorithm.period'")),
    ({"workers": ("a",)}, ("config.compare.grid.workers must be an integer", "got 'a'")),
    ({"workers": (2, 2.0)}, ("['workers'] must", "2, 2.0")),
    ({"workers": ()}, ("['workers'] must", "got ()")),
    ({"model.hidden": ((3,),)}, ("model.hidden", "same model")),
    ({"data.name": ("digits",)}, ("data.name", "same data set")),
    ({"seed": (1,)}, ("config.compare.seeds",)),
    ({"algorithm.delay": (1,)}, ("must be used by a compared algorithm", "got algorithm.delay")),
    ({"barrier.name": ("ssp",)}, ("must be used by a compared algorithm", "got barrier.name")),
    ({"workers": (1, 2), "batch": (1, 2), "optimizer.momentum": (0, 0.5), "steps": (3, 4)}, ("got 4",)),
    ({"workers": (0, 2)}, ("config.workers must be an integer >= 1, got 0.",)),
    ({"optimizer.learning_rate": (-1.0,)}, ("sync SGD", "learning_rate")),
    ((1, 2), ("must be a dictionary", "got (1, 2)")),
  ],
)
def test_invalid_grids(grid, words):
  refused(lambda: comparison_of(grid), *words)


def test_labels_that_change_the_data():
  labels = {"a": {}, "b": {"data": {"name": "least_squares"}}}
  with pytest.raises(ValueError, match=r"config\.data must be the same .* for b\."):
    comparison_of({}, labels)


def test_grid_on_the_command_line_and_in_a_record(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(
    "from ddl.config import base\n\ndef get_config():\n  config = base()\n"
    "  config.compare.grid = {'workers': (1, 2), 'algorithm.period': (4,)}\n  return config\n"
  )
  config, _ = config_flag.read("compare", [f"--config={file}"])
  assert config.compare.grid == (("workers", (1, 2)), ("algorithm.period", (4,)))
  flag = "--config.compare.grid={'times.slow': ((1.0, 2.0), (1.0, 1.0)), 'workers': (2, 4, 8)}"
  other, paths = config_flag.read("compare", [f"--config={file}", flag])
  expected = (("times.slow", ((1.0, 2.0), (1.0, 1.0))), ("workers", (2, 4, 8)))
  assert other.compare.grid == expected and paths == ["compare.grid"]
  again = base()
  again.compare.grid = restored(json.loads(json.dumps(recorded(other)))["compare"]["grid"])
  assert again.compare.grid == expected
  refused(lambda: config_flag.read("compare", [f"--config={file}", "--config.compare.grid=workers"]), "{'workers': (1")
  assert config_flag.read("sweep", [f"--config={file}", flag])[0].compare.grid == expected
