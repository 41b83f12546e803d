"""Settings of the wrong type, label or bounds, and arguments that almost fit: one line that names what is at fault."""

import json
import runpy
import sys
import warnings
from functools import partial

import jax
import numpy as np
import pytest
from absl import flags
from helpers.commands import ROOT

import ddl
from ddl.comparison import label_runs, sweep
from ddl.config import base, default_experiment, unread_keys
from ddl.config.base import load as load_config
from ddl.config.catalog import as_type, keyword_arguments
from ddl.config.comparison import only, variants
from ddl.config.experiment import Experiment, Network
from ddl.config.options import RunOptions, check_read
from ddl.config.sweep import Sweep, points
from ddl.data import source
from ddl.data.image_arrays import npz
from ddl.engine.checkpoint import Checkpoints
from ddl.errors import OptionError
from ddl.run import processes, virtual_time
from ddl.run.build import build
from ddl.run.folder import RunFolder
from ddl.run.workdir import workdir
from experiments.command_line import cli
from experiments.commands import compare, train

DIGITS = str(ROOT / "configs" / "digits.py")


def refused(call, *words, option=None):
  """Calls; the ValueError is one line with these words, and of this option."""
  with pytest.raises(OptionError if option else ValueError) as caught:
    call()
  assert not option or caught.value.option == option
  text = str(caught.value)
  assert "\n" not in text and len(text) < 400
  for word in words:
    assert word in text, f"{word!r} is not in: {text}"


@pytest.fixture
def ran(monkeypatch, capsys):
  """(arguments): (exit code, the experiment that is trained, stderr)."""
  got = []
  monkeypatch.setattr(train, "train", lambda experiment, options: got.append(experiment))

  def run(*arguments, command="train"):
    for name in flags.FLAGS:
      flags.FLAGS[name].unparse()
    got.clear()
    code = cli.run(command, list(arguments))
    return code, got[0] if got else None, capsys.readouterr().err

  return run


# ---- types of a section's keys


def section_of(kind, **keys):
  section = base()[kind]
  with section.ignore_type():
    section.update(keys)
  return section


def test_a_key_that_two_factories_read_as_different_types():
  refused(
    lambda: keyword_arguments("model", section_of("model", name="lenet", hidden=(64, 64))),
    "an integer (int) with model 'lenet', got (64, 64)", "to 128", "None", option="config.model.hidden",
  )  # fmt: skip
  assert keyword_arguments("model", section_of("model", name="lenet", hidden=32))["hidden"] == 32
  refused(
    lambda: keyword_arguments("model", section_of("model", name="mlp", hidden="a,b")),
    "a tuple of items, each an integer (int) with model 'mlp', got 'a,b'", "to (64, 64)", option="config.model.hidden",
  )  # fmt: skip


def test_the_line_of_a_wrong_type_says_what_works(ran):
  """The flag that the line proposes is read as the type that it asks for."""
  for flag, hidden in (("128", 128), ("None", keyword_arguments("model", {"name": "lenet"})["hidden"])):
    code, result, _ = ran(f"--config={DIGITS}", "--config.model.name=lenet", f"--config.model.hidden={flag}")
    assert code == 0 and result.model.hidden == hidden


def test_types():
  assert as_type(2.0, int, "x") == 2 and type(as_type(2.0, int, "x")) is int
  assert as_type(np.int64(3), int, "x") == 3 and type(as_type(1, float, "x")) is float
  assert as_type([1, 2.0], tuple[int, ...], "x") == (1, 2) and as_type(0.5, tuple[float, ...], "x") == (0.5,)
  wrong = [(2.5, int), (True, int), ("2", int), (None, int), (float("inf"), int), ("x", float), ((1.0,), float)]
  for value, annotation in [*wrong, (3, str), (1, bool), ((1, 2.5), tuple[int, ...]), ("ab", tuple[float, ...])]:
    refused(lambda value=value, annotation=annotation: as_type(value, annotation, "x"), option="x")
  local_sgd = {"name": "local_sgd", "period": 2.5}
  refused(lambda: keyword_arguments("algorithm", local_sgd), "got 2.5", "int", option="config.algorithm.period")


# ---- arguments


def test_the_config_flag_as_absl_users_write_it(ran):
  for arguments in (
    [f"--config={DIGITS}"], ["--config", DIGITS], [f"-config={DIGITS}"], ["-config", DIGITS],
  ):  # fmt: skip
    code, config, error = ran(*arguments, "--config.steps=7", "-config.batch=3", "--devices=1")
    assert code == 0 and not error and config.steps == 7 and config.batch == 3
  for arguments in (["--config"], ["--config", "--devices=1"]):
    code, _, error = ran(*arguments)
    assert code == 2 and error.count("\n") == 1 and "--config=FILE" in error


@pytest.mark.parametrize(
  "arguments, words",
  [
    (["--config.model.hidden=(16,)", "--config.model.hidden=(8, 4)"], "--config.model.hidden must be given once"),
    (["--devices=1", "--devices", "2"], "--devices must be given once, got 1 and 2."),
    (["--resume", "--noresume"], "--resume must be given once, got True and False."),
    (["--config", "other.py"], "--config must be given once"),
    (["--verbosity=1", "--verbosity=2"], "--verbosity must be given once"),
  ],
)
def test_a_flag_with_two_values(ran, arguments, words):
  code, config, error = ran(f"--config={DIGITS}", *arguments)
  assert code == 2 and config is None and words in error and error.count("\n") == 1


def test_a_flag_that_is_given_twice_with_one_value(ran):
  twice = ["--config.model.hidden=(8, 4)", "--devices=1"] * 2
  code, config, error = ran(f"--config={DIGITS}", *twice)
  assert code == 0 and not error and config.model.hidden == (8, 4)


@pytest.mark.parametrize(
  "command, arguments, words",
  [
    ("bench", ["--resume"], "resume must be left out"),
    ("bench", ["--processes=2"], "processes must be left out without perf"),
    ("bench", ["--members=2"], "members must be left out"),
    ("bench", ["--rivals", "--asynchronous"], "rivals, asynchronous"),
    ("sweep", ["--config=configs/digits_compare.py", "--init_from=x"], "init_from must be left out"),
    ("dryrun", [f"--config={DIGITS}", "--resume"], "resume must be left out"),
    ("list", [f"--config={DIGITS}", "--markdown=x"], "markdown"),
  ],
)
def test_a_flag_that_a_command_does_not_read(ran, command, arguments, words):
  code, _, error = ran(*arguments, command=command)
  assert code == 2 and words in error and error.count("\n") == 1


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
  "command, flag", [
    ("train", "join_timeout"), ("train", "peer_timeout"), ("train", "worker_cpus"), ("plan", "efficiency"),
    ("plan", "exposed"), ("scale", "jitter"), ("scale", "bucket"), ("tokenize", "validation"),
  ],
)  # fmt: skip
def test_a_flag_that_is_not_finite(ran, command, flag, value):
  code, config, error = ran(*[f"--config={DIGITS}"] * (command == "train"), f"--{flag}={value}", command=command)
  assert code == 2 and config is None and f"{flag} must be" in error and value in error and error.count("\n") == 1


def test_options_that_a_function_does_not_read(tmp_path):
  (tmp_path / "config.json").touch()  # no run can start there
  for command, option in (
    ("compare", {"runtime": "threads"}),
    ("sweep", {"init_from": "x"}),
    ("train", {"keep_models": True}),
  ):
    options, key = RunOptions(**option), next(iter(option))
    call = partial(getattr(ddl, command), str(ROOT / "configs/digits_compare.py"), workdir=tmp_path, options=options)
    refused(partial(check_read, command, options), f"left out of {command}", option=key)
    refused(call, f"left out of {command}", option=key)


@pytest.mark.parametrize(
  "key, value, words",
  [
    ("workers", 0, "config.workers must be an integer >= 1, got 0."),
    ("algorithm.period", 0, "config.algorithm.period must be an integer >= 1, got 0."),
  ],
)
@pytest.mark.parametrize("name", ["local_sgd", "easgd", "async_easgd", "dynsgd"])
def test_counts_of_an_algorithm(name, key, value, words):
  config = base()
  config.algorithm.name = name
  with config.ignore_type():
    config.update_from_flattened_dict({key: value})
  refused(lambda: Experiment.from_config(config), words)


@pytest.mark.parametrize(
  "algorithm, key",
  [
    ({"name": "dasgd", "delay": 10_000}, "delay"),
    ({"name": "dasgd", "delay": 41, "period": 1}, "delay"),
    ({"name": "pipe_sgd", "width": 10_000}, "width"),
  ],
)
def test_messages_that_pile_up_and_never_arrive(algorithm, key):
  words = f"config.algorithm.{key} must be at most config.steps=40, got {algorithm[key]}."
  refused(lambda: default_experiment(steps=40, algorithm=algorithm), words)


@pytest.mark.parametrize(
  "algorithm, steps, silent",
  [
    ({"name": "dasgd", "delay": 39, "period": 1}, 40, False),
    ({"name": "dasgd", "delay": 40, "period": 1}, 40, True),
    ({"name": "streaming_diloco", "delay": 100, "period": 100}, 4, True),
    ({"name": "eager_diloco", "period": 500}, 40, True),
  ],
)
def test_one_message_in_flight_that_never_arrives_is_warned_of(algorithm, steps, silent, recwarn):
  build(default_experiment(steps=steps, algorithm=algorithm))
  assert any("nothing is exchanged" in str(each.message) for each in recwarn.list) == silent


@pytest.mark.parametrize(
  "algorithm, key, words",
  [
    ({"name": "overlap_sgp", "overlap": 10_000}, "overlap", "nothing is exchanged"),
    ({"name": "sma", "period": 10_000}, "period", "nothing is exchanged"),
    ({"name": "noloco", "period": 5}, "period", "nothing is exchanged"),
    ({"name": "async_easgd", "period": 10_000}, "period", "nothing is exchanged"),
    ({"name": "hierarchical_sgd", "outer_period": 10_000}, "outer_period", "of one kind takes 10000"),
  ],
)
def test_a_length_beyond_the_run_is_warned_of_by_its_name(algorithm, key, words, recwarn):
  build(default_experiment(steps=4, workers=4, algorithm=algorithm))
  (message,) = (str(each.message) for each in recwarn.list if "the first exchange of" in str(each.message))
  assert words in message and f"decrease config.algorithm.{key} or increase config.steps" in message


def test_exchanges_that_take_turns_are_not_warned_of(recwarn):
  build(default_experiment(steps=5, workers=4, algorithm={"name": "noloco", "period": 5}))
  assert not [each for each in recwarn.list if "the first exchange of" in str(each.message)]


@pytest.mark.parametrize("name, key", [("streaming_diloco", "fragments"), ("noloco", "pairings")])
def test_more_exchanges_than_a_program_can_have(name, key):
  algorithm = {"name": name, "period": 10**9, key: 10**9}
  refused(lambda: default_experiment(algorithm=algorithm), f"config.algorithm.{key} must be an integer in [1, 64]")


@pytest.mark.parametrize("name", ["cosine", "decay"])
def test_a_warm_up_longer_than_the_run(name):
  schedule = {"name": name, "warmup": 50}
  refused(lambda: default_experiment(schedule=schedule, steps=50), "config.schedule.warmup with config.steps=50")


def test_only_takes_labels_and_algorithms():
  configs = variants(load_config(ROOT / "configs" / "digits_compare.py"))
  assert only(configs, ["easgd", "local SGD"]) == ["local SGD", "EASGD"]
  refused(lambda: only(configs, ["easgt"]), "easgt")


def test_the_nearest_command(monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["run.py", "tarin"])
  assert runpy.run_path(str(ROOT / "run.py"))["main"]() == 2
  assert "did you mean 'train'?" in capsys.readouterr().err


def test_what_does_not_fit_into_memory(ran, monkeypatch):
  for error in (MemoryError("Unable to allocate 9 TiB"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of\nx")):

    def fail(*_, error=error):
      raise error

    monkeypatch.setattr(train, "train", fail)
    code, _, text = ran(f"--config={DIGITS}")
    assert code == 2 and text.count("\n") == 1 and text.startswith("train: too large for this machine: ")
  monkeypatch.setattr(train, "train", lambda *_: (_ for _ in ()).throw(jax.errors.JaxRuntimeError("INTERNAL: x")))
  with pytest.raises(jax.errors.JaxRuntimeError):
    ran(f"--config={DIGITS}")


# ---- labels of a comparison


def with_labels(**labels):
  config = base()
  config.compare.algorithms = labels
  return config


LABELS = [
  ({"x": "local_sgd"}, "['x'] must be a dictionary", "got 'local_sgd'"),
  ({"x": {"algorithm": 3}}, "['x'].algorithm must", "got 3", "{'name': 'sync_sgd'}"),
  ({"x": {"network": "fast"}}, "['x'].network must be a dictionary", "got 'fast'"),
  ({"x": {"algorithm": {"period": 2.5}}}, "['x'].algorithm.period must be an integer", "got 2.5"),
  ({"x": {"batch": "many"}}, "['x'].batch must be an integer", "got 'many'"),
  ({"x": {"batch": None}}, "['x'].batch must", "got None"),
  ({"x": {"optimizer": {"learning_rate": "fast"}}}, "['x'].optimizer.learning_rate must", "got 'fast'", "float"),
  ({"x": {"optimizer": {"nesterov": 1}}}, "['x'].optimizer.nesterov must", "got 1", "bool"),
  ({"x": {"steps": {"more": 3}}}, "['x'].steps must", "got {'more': 3}", "int"),
  ({"": {}}, "a label of", "got ''"),
  ({"a b": {}, "a_b": {}}, "'a b' and 'a_b'"),
]


@pytest.mark.parametrize("case", LABELS, ids=lambda case: str(case[0]))
def test_labels_and_their_changes(case):
  labels, *words = case
  refused(lambda: variants(with_labels(**labels)), "config.compare.algorithms", *words)


def test_changes_that_fit():
  result = variants(with_labels(x={"algorithm": {"period": 2.0}, "times": {"slow": [1, 2]}, "optimizer": {"b1": None}}))
  assert result["x"].algorithm.period == 2 and result["x"].times.slow == (1, 2) and result["x"].optimizer.b1 is None


TUNED = [
  ({"algorithms": []}, "tuned must be"),
  ({"algorithms": [{"label": "x"}]}, "tuned must be"),
  ({"algorithms": {}}, "tuned must be"),
  ({"algorithms": {"x": 3}}, "tuned must be"),
  ([], "no object"),
  ({"algorithms": {"x": {"best": 3}}}, "'x' must", "got 3"),
  ({"algorithms": {"x": {"best": {"optimizer": 3}}}}, "'x'.optimizer must", "got 3"),
  ({"algorithms": {"x": {"best": {"algorithm": {"period": 2.5}}}}}, "'x'.algorithm.period must", "got 2.5", "int"),
]


def test_a_sweeps_result_that_cannot_be_read(tmp_path):
  for path in (tmp_path / "none.json", tmp_path):
    refused(lambda path=path: variants(with_labels(x={}), str(path)), str(path), option="tuned")


@pytest.mark.parametrize("case", TUNED, ids=lambda case: str(case[0]))
def test_a_file_that_is_no_sweeps_result(tmp_path, case):
  content, *words = case
  (tmp_path / "tuned.json").write_text(json.dumps(content))
  refused(lambda: variants(with_labels(x={}), str(tmp_path / "tuned.json")), "tuned.json", *words)


# ---- sweeps


@pytest.fixture
def tune(monkeypatch, tmp_path, capfd):
  """(labels, **sweep): runs a sweep of 4 steps in this process; returns what tuned.json holds."""
  monkeypatch.setattr(processes, "start_devices", lambda *_: None)

  def run(labels, **changed):
    config = with_labels(**labels)
    config.workers, config.steps, config.eval_every = 2, 4, 4
    config.sweep.trials = 1
    with config.sweep.ignore_type():
      for key, value in changed.items():
        config.sweep[key] = value
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
      sweep.sweep(Sweep.from_config(config), RunOptions(workdir=f"{tmp_path}/sweep", devices=1))
    return json.loads((tmp_path / "sweep" / "tuned.json").read_text())["algorithms"]

  return run


LAST = {"test_loss": 1.0, "test_accuracy": 0.5}
DASGD = {"DaSGD": {"algorithm": {"name": "dasgd", "period": 2, "keep": 0.5}}}
SPACES = [
  ({"space": {"DaSDG": {"delay": (0, 2)}}}, "config.sweep.space", "Did you mean 'DaSGD'?"),
  ({"space": {"DaSGD": {"start": (0, 2)}}}, "config.sweep.space['DaSGD'].start", "period, delay"),
  ({"space": {"DaSGD": {"name": (0, 2)}}}, "config.sweep.space['DaSGD'].name", "period, delay"),
  ({"space": {"DaSGD": {"delay": 3}}}, "config.sweep.space['DaSGD'].delay must", "got 3", "(low, high)"),
  ({"space": {"DaSGD": {"delay": (1, 2, 3)}}}, "delay must", "got (1, 2, 3)", "(low, high)"),
  ({"space": {"DaSGD": {"delay": (0.5, 2)}}}, "delay must", "got 0.5", "int"),
  ({"space": {"DaSGD": {"keep": ("a", "b")}}}, "keep must", "got 'a'", "float"),
  ({"space": {"DaSGD": {"delay": (2, 2)}}}, "delay must", "got (2, 2)"),
  ({"space": {"DaSGD": 3}}, "config.sweep.space['DaSGD'] must", "got 3"),
  ({"learning_rate": 0.1}, "config.sweep.learning_rate must", "got 0.1", "(low, high)"),
  ({"learning_rate": (0.0, 1.0)}, "config.sweep.learning_rate must be > 0, got 0."),
  ({"learning_rate": (0.1, float("inf"))}, "config.sweep.learning_rate"),
  ({"space": {"DaSGD": {"delay": [1]}}}, "config.sweep.space['DaSGD'].delay must", "got [1]"),
  ({"space": {"DaSGD": {"delay": [1, 1]}}}, "config.sweep.space['DaSGD'].delay must", "got [1, 1]"),
  ({"space": {"DaSGD": {"delay": [1, 0.5]}}}, "config.sweep.space['DaSGD'].delay must", "got 0.5", "int"),
  ({"space": {"DaSGD": {"optimizer": {"b1": (0.5, 0.9)}}}}, "config.sweep.space['DaSGD'].optimizer.b1", "momentum"),
  ({"space": {"DaSGD": {"optimizer": {"nesterov": (0, 1)}}}}, "config.sweep.space['DaSGD'].optimizer.nesterov"),
  ({"space": {"DaSGD": {"optimizer": 3}}}, "config.sweep.space['DaSGD'].optimizer must", "got 3"),
  ({"seeds": (0, 0)}, "config.sweep.seeds", "(0, 0)"),
  ({"seeds": (-1,)}, "config.sweep.seeds", "-1"),
  ({"sampler": "tpa"}, "config.sweep", "Did you mean 'tpe'?"),
  ({"validation": 0.0}, "config.sweep.validation"),
  ({"validation": 1.5}, "config.sweep.validation"),
  ({"pruning": True}, "config.sweep.pruning", "config.eval_every"),
  ({"trials": 0}, "config.sweep.trials must be an integer >= 1, got 0."),
  ({"trials": -2}, "config.sweep.trials must be an integer >= 1, got -2."),
  (
    {"space": {"DaSGD": {"keep": (2.0, 3.0)}}},
    "'DaSGD' is invalid in each of 1 trials",
    "keep must be in [0, 1], got 2.333.",
  ),
]


@pytest.mark.parametrize("case", SPACES, ids=lambda case: str(case[0]))
def test_a_space_that_cannot_be_searched(tune, tmp_path, case):
  changed, *words = case
  refused(lambda: tune(DASGD, **changed), *words)
  assert not (tmp_path / "sweep").exists()


def test_an_impossible_trial_is_a_failed_one(tune, tmp_path, monkeypatch):
  (tmp_path / "sweep").mkdir()
  trained = []

  def run(batch, *_):
    trained.extend(run.components.experiment.algorithm.keep for run in batch.runs)
    return [LAST] * len(batch.runs)

  monkeypatch.setattr(label_runs.train_loop, "run", run)
  result = tune(DASGD, space={"DaSGD": {"keep": (0.0, 2.0)}}, trials=4)["DaSGD"]
  kept = [trial["setting"]["algorithm"]["keep"] for trial in result["trials"]]
  assert {keep > 1 for keep in kept} == {True, False}
  assert [trial["validation"] is None for trial in result["trials"]] == [keep > 1 for keep in kept]
  assert [trial["outcome"] for trial in result["trials"]] == [("complete", "invalid")[keep > 1] for keep in kept]
  assert result["best"]["algorithm"]["keep"] <= 1
  assert trained == [keep for keep in kept if keep <= 1]


def test_points_keep_the_types_and_four_digits():
  result = points({"a": (-2.0, 3.0), "b": (1, 8), "c": (10.0, 1e6)}, 16)
  assert all(-2 < p["a"] < 3 and type(p["b"]) is int and 10 <= p["c"] <= 1e6 for p in result)
  assert all(v == float(f"{v:.4g}") for p in result for v in p.values())


# ---- what a command would not read


ASYNC = f"--config={ROOT / 'configs' / 'async_easgd_digits.py'}"


@pytest.mark.parametrize(
  "name, argument, words",
  [
    ("async_easgd", "network.blocks=4", "async_easgd has a lock"),
    ("async_easgd", "network.overlap=False", "async_easgd has no collective"),
    ("async_easgd", "network.exchange_seconds=0.1", "async_easgd has no collective"),
    ("async_easgd", "barrier.name=bsp", None),
    ("hogwild_easgd", "network.blocks=4", None),
    ("easgd", "network.exchange_seconds=0.1", None),
    ("easgd", "times.seconds=0.1", None),
  ],
)
def test_a_flag_that_the_algorithm_would_not_read(ran, name, argument, words):
  code, got, error = ran(ASYNC, f"--config.{argument}", f"--config.algorithm.name={name}")
  assert (code == 0) is (got is not None) is (words is None)
  if words:
    assert error == f"train: config.{argument.partition('=')[0]} must be left out of train: {words}.\n" or (
      "hogwild" in error and words in error
    )


def test_a_comparison_reads_what_one_of_its_algorithms_reads(ran, monkeypatch):
  monkeypatch.setattr(compare, "compare", lambda *_: None)
  assert ran(ASYNC, "--config.barrier.name=bsp", command="compare")[0] == 0
  code, _, error = ran(ASYNC, "--config.barrier.name=bsp", "--only=sync SGD,Sync EASGD", command="compare")
  assert code == 2 and "config.barrier.name must be left out of compare: sync_sgd has" in error


def test_a_momentum_beside_that_of_asynchrony_is_warned_of():
  """arXiv 1605.09774: p workers in turn act like a momentum of 1 - 1/p."""
  words = "async_sgd: 8 asynchronous workers .* 1 - 1/8 = 0.875 .* config.optimizer.momentum=0.9 adds to it; try 0"

  def make(name, momentum, workers):
    build(default_experiment(algorithm={"name": name}, optimizer={"momentum": momentum}, workers=workers))

  with pytest.warns(UserWarning, match=words):
    make("async_sgd", 0.9, 8)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for each in (("async_sgd", 0.0, 8), ("async_sgd", 0.9, 1), ("async_easgd", 0.9, 8), ("sync_sgd", 0.9, 8)):
      make(*each)


def test_a_momentum_of_the_master_beside_that_of_asynchrony_is_warned_of():
  with pytest.warns(
    UserWarning, match="async_msgd: 8 asynchronous workers .* config.algorithm.momentum=0.9 adds to it"
  ):
    build(default_experiment(algorithm={"name": "async_msgd"}))


@pytest.mark.parametrize(
  ("key", "words"),
  [("straggler_rate", "straggler_rate has no effect: .*straggler_factor is 1"), ("down_seconds", "death_rate is 0")],
)
def test_trouble_that_does_nothing_is_warned_of(key, words):
  with pytest.warns(UserWarning, match=words):
    virtual_time.step_times(default_experiment(times={key: 0.5}))


@pytest.mark.parametrize(
  ("name", "blocks", "service", "warned"),
  [
    ("hogwild_sgd", 4, 0.0, True),
    ("hogwild_sgd", 4, 0.001, False),
    ("hogwild_sgd", Network.blocks, 0.0, False),
    ("async_sgd", 4, 0.0, False),  # whose command line refuses them
  ],
)
def test_blocks_of_visits_that_take_no_time_are_warned_of(name, blocks, service, warned):
  network = {"blocks": blocks, "service_seconds": service}
  result = default_experiment(algorithm={"name": name}, steps=3, network=network)
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    virtual_time.whole_run(result, result.make_algorithm())
  reported = [str(each.message) for each in seen]
  assert reported == warned * [
    "config.network.blocks=4 has no effect: config.network.service_seconds is 0, so visits never overlap"
  ]


def test_a_second_momentum_is_warned_of():
  build(default_experiment(algorithm={"name": "eamsgd"}))
  with pytest.warns(UserWarning, match="eamsgd already has momentum \\(0.99\\); config.optimizer.momentum adds"):
    build(default_experiment(algorithm={"name": "eamsgd"}, optimizer={"momentum": 0.9}))


# ---- damaged files and folders that cannot be


def test_a_folder_that_cannot_be_made_is_found_before_training(tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
    refused(lambda path=path: workdir("x", RunOptions(workdir=str(path))), f"{tmp_path / 'file'} is a file")
  assert workdir("x", RunOptions(workdir=f"{tmp_path}/new/er")) == tmp_path / "new" / "er"


def test_a_damaged_checkpoint_and_config_name_themselves(tmp_path):
  saved = Checkpoints(tmp_path / "checkpoints")
  saved.save(3, {"x": np.arange(4.0)}, {"step": 3}, wait=True)
  for file in (tmp_path / "checkpoints" / "3" / "figures").iterdir():
    file.write_text("{")
  refused(lambda: saved.figures(3), str(tmp_path / "checkpoints" / "3"), "cannot be read")
  saved.close()
  folder = RunFolder(tmp_path / "run")
  folder.create(default_experiment(), {})
  (tmp_path / "run" / "config.json").write_text("{")
  refused(lambda: folder.reopen(default_experiment()), str(tmp_path / "run" / "config.json"), "damaged")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_examples_that_are_not_finite_are_not_called_a_divergence(value):
  images = np.zeros((5, 4, 4), np.float32)
  images[3, 1, 2] = value
  refused(lambda: source.labelled(images, np.zeros(5, np.int32), "x.npz"), "x.npz", "finite", "at index 3")


# ---- class numbers


@pytest.mark.parametrize("label", [2**31, 2**33 + 1, np.uint64(2**63 + 5)])
def test_labels_beyond_int32_are_not_wrapped(label):
  labels = np.array([0, label], np.asarray(label).dtype)
  refused(lambda: source.labelled(np.zeros((2, 4, 4), np.uint8), labels, "x.npz"), "x.npz", str(label), "int32")


def test_more_classes_than_a_data_set_can_have(tmp_path):
  def data(top):
    np.savez(tmp_path / "x.npz", image=np.zeros((12, 4, 4), np.uint8), label=np.array([top] * 12))
    return npz(path=str(tmp_path / "x.npz"))

  assert data(10**6 - 1).meta["num_outputs"] == 10**6
  refused(lambda: data(2 * 10**9), "x.npz", "got 2,000,000,000", "Number the classes from 0")


@pytest.mark.parametrize("label", [{"algorithm": "sync_sgd"}, {"algorithm": {"name": "sync_sgd"}}])
def test_flags_beside_labels_in_the_short_form(label):
  unread_keys.check("compare", "steps", [label])
  refused(lambda: unread_keys.check("compare", "algorithm.name", [label]), "label", option="config.algorithm.name")
