"""`config.wrapper`: compression of an algorithm's messages."""

import jax
import pytest

from ddl.comparison import record
from ddl.config.base import default_experiment
from ddl.engine import traffic
from ddl.names import Place
from ddl.run.build import build

MODELS = [  # wrappers that compress differences, and algorithms that send whole models
  ("topk", "local_sgd"), ("powersgd", "fedavg"), ("randomk", "dasgd"), ("demo", "slowmo"), ("demo", "cocod"),
]  # fmt: skip
PARAMS = {"w": jax.ShapeDtypeStruct((100, 10), "float32")}


def sent(**changes):
  return traffic.of(default_experiment(**changes).make_algorithm(), PARAMS, 8)


def test_bytes_of_compressed_messages():
  plain, few = sent(), sent(wrapper={"name": "topk", "share": 0.05})
  low = sent(wrapper={"name": "powersgd", "rank": 2})
  assert plain.sent(plain.local) == 2 * 4000 * 7 / 8
  assert few.sent(few.local) == 7 * 50 * 8  # values and indices from every other worker
  assert low.sent(low.local) == 2 * 4 * 2 * 110 * 7 / 8


def test_json_round_trip():
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
def test_invalid_wrappers(changes, words):
  with pytest.raises(ValueError) as error:
    default_experiment(**changes)
  assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


def test_warning_for_a_wrapper_of_differences_with_parameters():
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
def test_warning_for_an_unstable_share_with_elastic_averaging(algorithm, share, limit, recwarn):
  build(default_experiment(wrapper={"name": "randomk", "share": share}, algorithm=algorithm, workers=4))
  messages = [str(warning.message) for warning in recwarn if "likely to diverge" in str(warning.message)]
  assert len(messages) == (limit is not None) and all(limit in message for message in messages)


def test_no_warning_for_sparta_with_parameters(recwarn):
  experiment = default_experiment(wrapper={"name": "sparta"}, algorithm={"name": "local_sgd"})
  build(experiment)
  assert not recwarn.list and experiment.label == "local_sgd+sparta"


def test_label_and_record_contain_algorithm_and_wrapper(tmp_path):
  assert default_experiment().label == default_experiment().algorithm.name
  experiment = default_experiment(wrapper={"name": "topk"})
  entry = record.entry(tmp_path, "few", build(experiment), False, Place("few", {}))
  assert "Top-k" in entry["title"] and entry["citation"].count("arXiv") == 2
