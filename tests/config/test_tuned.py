"""`compare --tuned`: the entry of a label and grid point is applied, and refused at settings other than the sweep's."""

import json

import pytest
from helpers.comparisons import write_tuned

from ddl.config.comparison import Comparison
from ddl.config.experiment import flat
from ddl.config.resolve import resolve
from ddl.config.sweep import Sweep
from ddl.config.tuned import settings_of, summary
from ddl.errors import OptionError

LABELS = {
  "sync SGD": {"algorithm": "sync_sgd"},
  "local SGD": {"algorithm": {"name": "local_sgd", "period": 10}},
  "server": {"algorithm": {"name": "async_sgd"}},
}
GRID = {"algorithm.period": (4, 16)}
RATES = {"sync SGD": 0.01, "local SGD, period 4": 0.02, "local SGD, period 16": 0.03, "server": 0.04}


def config_of(**changes):
  compare = {"grid": GRID, "algorithms": LABELS} | changes.pop("compare", {})
  return resolve(None, {"compare": compare, **changes})


@pytest.fixture
def tuned(tmp_path):
  """A tuned.json with a rate for each label and grid point."""
  best = {label: {"optimizer": {"learning_rate": rate}} for label, rate in RATES.items()}
  return write_tuned(tmp_path / "tuned.json", config_of(), best)


def rates(tuned, only=(), **changes):
  compared = Comparison.from_config(config_of(**changes), only, str(tuned))
  assert compared.tuned == str(tuned)
  return {label: experiment.optimizer.learning_rate for label, experiment in compared.experiments.items()}


def refused(tuned, only=(), **changes):
  """Return the error of a comparison; check that it is one line and names tuned.json."""
  with pytest.raises(OptionError) as error:
    rates(tuned, only, **changes)
  assert "\n" not in str(error.value) and str(tuned) in str(error.value)
  return error.value


def test_each_grid_point_has_the_settings_tuned_at_it(tuned):
  assert rates(tuned) == RATES
  assert rates(tuned, ["local SGD"]) == {label: RATES[label] for label in RATES if label.startswith("local")}
  compared = Comparison.from_config(config_of(), (), str(tuned))
  assert compared.tuned_labels == {label: {"keys": ["optimizer.learning_rate"], "trials": 0} for label in RATES}
  assert compared.experiments["local SGD, period 16"].algorithm.period == 16


def test_points_are_matched_by_value_and_not_by_label(tuned):
  grid = {"algorithm.period": (16,)}
  assert rates(tuned, compare={"grid": grid}) == {"sync SGD": 0.01, "local SGD": 0.03, "server": 0.04}


@pytest.mark.parametrize("grid", [{"algorithm.period": (4, 8)}, {}, GRID | {"workers": (8,)}])
def test_a_point_that_was_not_tuned_is_refused(tuned, grid):
  error = refused(tuned, ["local SGD"], compare={"grid": grid})
  assert error.option == "tuned" and "local SGD" in error.condition
  assert "algorithm.period=4" in str(error.value) and "algorithm.period=16" in str(error.value)
  assert "=8" in error.condition or not grid


def test_labels_without_an_entry_have_the_settings_of_the_config(tmp_path):
  best = {"sync SGD": {"optimizer": {"learning_rate": 0.01}}}
  file = write_tuned(tmp_path / "tuned.json", config_of(), best)
  assert rates(file) == dict.fromkeys(RATES, 0.1) | {"sync SGD": 0.01}
  others = {label: LABELS[label] for label in ("local SGD", "server")}
  assert refused(file, compare={"algorithms": others}).option.startswith("label in ")


@pytest.mark.parametrize(
  "changes, option, then, now",
  [
    ({"workers": 4}, "config.workers", 8, 4),
    ({"batch": 16}, "config.batch", 32, 16),
    ({"steps": 100}, "config.steps", 200, 100),
    ({"microbatches": 2}, "config.microbatches", 1, 2),
    ({"precision": "bfloat16"}, "config.precision", "float32", "bfloat16"),
    ({"model": {"hidden": (8,)}}, "config.model.hidden", [64, 64], [8]),
    ({"data": "least_squares"}, "config.data.name", "digits", "least_squares"),
    ({"partition": "sharded"}, "config.partition.name", "iid", "sharded"),
    ({"optimizer": {"momentum": 0.9}}, "config.optimizer.momentum", 0.0, 0.9),
    ({"optimizer": "adam"}, "config.optimizer.name", "sgd", "adam"),
    ({"schedule": "cosine"}, "config.schedule.name", "constant", "cosine"),
    ({"wrapper": "int8"}, "config.wrapper.name", "none", "int8"),
    ({"compare": {"algorithms": LABELS | {"local SGD": {"algorithm": "easgd"}}}}, "config.algorithm.name",
     "local_sgd", "easgd"),
  ],
)  # fmt: skip
def test_settings_that_differ_from_those_of_the_sweep_are_refused(tuned, changes, option, then, now):
  error = refused(tuned, ["local SGD"], **changes)
  assert error.option == option and error.condition.startswith(f"{then} ") and error.value == now


def test_seed_evaluation_and_tuned_keys_may_differ(tuned):
  assert rates(
    tuned, seed=3, eval_every=7, noise_batches=2, data={"validation": 0.1}, optimizer={"learning_rate": 0.5},
    compare={"seeds": (5,), "target": 0.9}, sweep={"trials": 3},
  ) == RATES  # fmt: skip


def test_virtual_time_must_be_equal_only_if_it_affects_training(tuned):
  assert rates(tuned, ["local SGD"], times={"seconds": 2.0}, network={"message_seconds": 0.1})
  assert refused(tuned, ["server"], times={"seconds": 2.0}).option == "config.times.seconds"
  assert refused(tuned, times={"seconds": 2.0}).option == "config.times.seconds"
  assert rates(tuned, network={"exchange_seconds": 2.0, "overlap": False}) == RATES
  changes = {"elastic": True, "times": {"death_rate": 0.1}}
  best = {"local SGD, period 4": {"optimizer": {"learning_rate": 0.02}}}
  file = write_tuned(tuned.with_name("elastic.json"), config_of(elastic=True), best)
  assert refused(file, ["local SGD, period 4"], **changes).option == "config.times.death_rate"


def test_a_sweep_records_the_settings_that_a_comparison_needs(tmp_path):
  """The sweep's learning rate, validation split and sections do not have to be those of the comparison."""
  space = {"local SGD": {"optimizer": {"momentum": (0.1, 0.9)}}}
  config = config_of(sweep={"space": space}, optimizer={"learning_rate": 1.0})
  swept, entries = Sweep.from_config(config), {}
  for label, experiment in swept.experiments.items():
    group, point = swept.places[label]
    best = {"optimizer": {"learning_rate": 0.3} | ({"momentum": 0.5} if group == "local SGD" else {})}
    settings = settings_of(experiment, swept.spaces[label])
    assert "optimizer.learning_rate" not in settings and ("optimizer.momentum" in settings) is (group != "local SGD")
    entries[label] = {"group": group, "point": point, "settings": settings, "best": best, "trials": []}
  file = tmp_path / "tuned.json"
  file.write_text(json.dumps({"algorithms": entries}))
  compared = Comparison.from_config(config_of(), (), str(file)).experiments
  momenta = [experiment.optimizer.momentum for experiment in compared.values()]
  assert momenta == [0.0, 0.5, 0.5, 0.0] and set(rates(file).values()) == {0.3}


ENTRY = {"group": "server", "point": {}, "settings": {}, "best": {}, "trials": []}


@pytest.mark.parametrize(
  "content",
  [
    [], {}, {"algorithms": []}, {"algorithms": {}}, {"algorithms": {"server": 3}}, {"algorithms": [{"label": "x"}]},
    {"algorithms": {"server": {"best": {"optimizer": {"learning_rate": 0.1}}, "trials": []}}},  # of an older version
    *({"algorithms": {"server": ENTRY | {key: 3}}} for key in ENTRY),
  ],
)  # fmt: skip
def test_files_without_the_settings_of_a_sweep_are_refused(tmp_path, content):
  file = tmp_path / "tuned.json"
  file.write_text(json.dumps(content))
  assert refused(file).option == "tuned"


def test_missing_files_and_invalid_best_settings_are_refused(tmp_path, tuned):
  for path in (tmp_path / "none.json", tmp_path):
    assert refused(path).option == "tuned"
  valid = json.loads(tuned.read_text())["algorithms"]
  for best, key in (({"optimizer": 3}, "optimizer"), ({"algorithm": {"perod": 2}}, "algorithm.perod"),
                    ({"optimizer": {"learning_rate": "a"}}, "optimizer.learning_rate")):  # fmt: skip
    valid["server"]["best"] = best
    experiment = Comparison.from_config(config_of()).experiments["server"]
    valid["server"]["settings"] = settings_of(experiment, [*flat(best)])
    tuned.write_text(json.dumps({"algorithms": valid}))
    assert refused(tuned).option.endswith(f"['server'].{key}")


def test_summary_of_a_sweep_has_keys_and_number_of_trials():
  best = {"optimizer": {"learning_rate": 0.1}, "algorithm": {"period": 4}}
  entries = {"a": {"best": best, "trials": [{"setting": best, "validation": None}] * 3}}
  assert summary(entries) == {"a": {"keys": ["optimizer.learning_rate", "algorithm.period"], "trials": 3}}
