"""`config.wrapper`: what compresses an algorithm's messages."""

import jax
import pytest

from ddl.comparison import record
from ddl.config.base import default_experiment
from ddl.engine import traffic
from ddl.names import Place
from ddl.run.build import build

MODELS = [  # mean compressors of algorithms that send whole models
  ("topk", "local_sgd"), ("powersgd", "local_sgd"), ("randomk", "dasgd"), ("demo", "slowmo"), ("demo", "cocod"),
  ("topk", "overlap_local_sgd"), ("powersgd", "fedavg"), ("randomk", "adaptive_local_sgd"),
]  # fmt: skip
PARAMS = {"w": jax.ShapeDtypeStruct((100, 10), "float32")}


def sent(**changes):
  return traffic.of(default_experiment(**changes).make_algorithm(), PARAMS, 8)


def test_a_wrapper_compresses_what_the_algorithm_sends():
  plain, few = sent(), sent(wrapper={"name": "topk", "share": 0.05})
  low = sent(wrapper={"name": "powersgd", "rank": 2})
  assert plain.sent(plain.local) == 2 * 4000 * 7 / 8
  assert few.sent(few.local) == 7 * 50 * 8  # values and places of every other worker
  assert low.sent(low.local) == 2 * 4 * 2 * 110 * 7 / 8


def test_its_settings_have_defaults_and_go_through_json():
  experiment = default_experiment(wrapper={"name": "powersgd"})
  assert experiment.wrapper.rank == 2 and experiment.to_json()["wrapper"] == {"name": "powersgd", "rank": 2}
  assert type(experiment).from_json(experiment.to_json()) == experiment
  assert default_experiment().to_json()["wrapper"] == {"name": "none"}


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"wrapper": {"share": 0.1}}, ["config.wrapper.share", "topk"]),
    ({"wrapper": {"name": "topkk"}}, ["topkk", "topk"]),
    ({"wrapper": {"name": "topk", "share": 2.0}}, ["share must be in (0, 1], got 2"]),
    ({"wrapper": {"name": "topk", "rank": 2}}, ["config.wrapper.rank"]),
    ({"wrapper": {"name": "topk"}, "algorithm": {"name": "async_sgd"}}, ["config.wrapper.name", "async_sgd"]),
    ({"wrapper": {"name": "topk"}, "algorithm": {"name": "d_psgd"}}, ["topk", "shift"]),
    *(
      ({"wrapper": {"name": wrapper}, "algorithm": {"name": name}}, [wrapper, "averages models", "diloco"])
      for wrapper, name in MODELS
    ),
  ],
)
def test_what_does_not_fit_is_one_line(changes, words):
  with pytest.raises(ValueError) as error:
    default_experiment(**changes)
  assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


def test_parameters_are_no_differences():
  with pytest.warns(UserWarning, match="local_sgd sends parameters"):
    build(default_experiment(wrapper={"name": "int8"}, algorithm={"name": "local_sgd"}))


@pytest.mark.parametrize(
  "algorithm, share, limit",
  [
    ({"name": "easgd", "alpha": 0.025}, 0.1, None),  # p alpha = 0.1, the limit is 0.2 / 1.9
    ({"name": "easgd", "alpha": 0.027}, 0.1, "0.105"),
    ({"name": "easgd"}, 1.0, None),
    ({"name": "eamsgd", "alpha": 0.027}, 0.1, "0.105"),
    ({"name": "sma", "alpha": 0.0125, "momentum": 0.5}, 0.1, None),
    ({"name": "sma", "alpha": 0.014, "momentum": 0.5}, 0.1, "0.0526"),
    ({"name": "round_robin_easgd", "alpha": 0.1}, 0.1, None),
    ({"name": "round_robin_easgd", "alpha": 0.11}, 0.1, "0.105"),
    ({"name": "diloco"}, 0.1, None),
  ],
)
def test_a_memory_in_an_elastic_loop_has_a_limit(algorithm, share, limit, recwarn):
  build(default_experiment(wrapper={"name": "randomk", "share": share}, algorithm=algorithm, workers=4))
  reported = [str(each.message) for each in recwarn if "likely to diverge" in str(each.message)]
  assert [limit in each for each in reported] == [True] * (limit is not None)


def test_parameters_are_what_sparta_is_made_for(recwarn):
  experiment = default_experiment(wrapper={"name": "sparta"}, algorithm={"name": "local_sgd"})
  build(experiment)
  assert not recwarn.list and experiment.label == "local_sgd+sparta"


def test_the_label_of_a_run_names_both(tmp_path):
  assert default_experiment().label == default_experiment().algorithm.name
  experiment = default_experiment(wrapper={"name": "topk"})
  entry = record.entry(tmp_path, "few", build(experiment), False, Place("few", {}))
  assert "Top-k" in entry["title"] and entry["citation"].count("arXiv") == 2
