"""Invalid settings, labels, bounds and flags: the error is one line that contains the option and the value."""

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
from ddl.algorithms import COLLECTIVE
from ddl.comparison import label_runs, sweep
from ddl.config import base, default_experiment, unread_keys
from ddl.config.base import load as load_config
from ddl.config.catalog import as_type, keyword_arguments
from ddl.config.comparison import expanded, only, variants
from ddl.config.experiment import Network
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

DIGITS = str(ROOT / "configs" / "digits.py")


def refused(call, *words, option=None):
  """Assert that a call raises a ValueError of one line with these words, and with this option."""
  with pytest.raises(OptionError if option else ValueError) as error:
    call()
  assert not option or error.value.option == option
  text = str(error.value)
  assert "\n" not in text and len(text) < 400
  for word in words:
    assert word in text, f"{word!r} is not in: {text}"


@pytest.fixture
def ran(monkeypatch, capsys):
  """Run a command without training: (arguments) -> (exit code, experiment, stderr)."""
  experiments = []
  monkeypatch.setattr("ddl.run.train.train", lambda experiment, options: experiments.append(experiment))

  def run(*arguments, command="train"):
    for name in flags.FLAGS:
      flags.FLAGS[name].unparse()
    experiments.clear()
    code = cli.run(command, list(arguments))
    return code, experiments[0] if experiments else None, capsys.readouterr().err

  return run


# ---- types of a section's keys


def section_of(kind, **keys):
  section = base()[kind]
  with section.ignore_type():
    section.update(keys)
  return section


def test_type_of_a_key_depends_on_the_factory():
  refused(
    lambda: keyword_arguments("model", section_of("model", name="lenet", hidden=(64, 64))),
    "an integer (int) with model 'lenet', got (64, 64)", "None for its default, 128.", option="config.model.hidden",
  )  # fmt: skip
  assert keyword_arguments("model", section_of("model", name="lenet", hidden=32))["hidden"] == 32
  refused(
    lambda: keyword_arguments("model", section_of("model", name="mlp", hidden="a,b")),
    "a tuple of items, each an integer (int) with model 'mlp', got 'a,b'", "None for its default, (64, 64).",
    option="config.model.hidden",
  )  # fmt: skip


def test_suggested_values_are_valid_flags(ran):
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


def test_forms_of_the_config_flag(ran):
  for arguments in (
    [f"--config={DIGITS}"], ["--config", DIGITS], [f"-config={DIGITS}"], ["-config", DIGITS],
  ):  # fmt: skip
    code, config, error = ran(*arguments, "--config.steps=7", "-config.batch=3", "--devices=1")
    assert code == 0 and not error and config.steps == 7 and config.batch == 3
  for arguments in (["--config"], ["--config", "--devices=1"]):
    code, _, error = ran(*arguments)
    assert code == 2 and error.count("\n") == 1 and "--config=FILE" in error


def test_repeated_flags(ran):
  for arguments, flag in (
    (["--config.model.hidden=(16,)", "--config.model.hidden=(8, 4)"], "--config.model.hidden"),
    (["--devices=1", "--devices", "2"], "--devices must be given once, got 1 and 2."),
    (["--resume", "--noresume"], "--resume must be given once, got True and False."),
    (["--config", "other.py"], "--config "),
    (["--verbosity=1", "--verbosity=2"], "--verbosity "),
  ):
    code, config, error = ran(f"--config={DIGITS}", *arguments)
    assert code == 2 and config is None and flag in error and error.count("\n") == 1
  same = ["--config.model.hidden=(8, 4)", "--devices=1"] * 2
  code, config, error = ran(f"--config={DIGITS}", *same)
  assert code == 0 and not error and config.model.hidden == (8, 4)


def test_flags_that_a_command_does_not_read(ran):
  for command, arguments, flag in (
    ("bench", ["--resume"], "resume must be"),
    ("bench", ["--processes=2"], "processes must be"),
    ("bench", ["--members=2"], "members must be"),
    ("bench", ["--rivals", "--asynchronous"], "asynchronous"),
    ("sweep", ["--config=configs/digits_compare.py", "--init_from=x"], "init_from must be"),
    ("dryrun", [f"--config={DIGITS}", "--resume"], "resume must be"),
    ("list", [f"--config={DIGITS}", "--markdown=x"], "markdown"),
  ):
    code, _, error = ran(*arguments, command=command)
    assert code == 2 and flag in error and error.count("\n") == 1


@pytest.mark.parametrize(
  "command, flag, value",
  [
    ("train", "join_timeout", "nan"), ("train", "peer_timeout", "inf"), ("train", "worker_cpus", "-inf"),
    ("plan", "efficiency", "nan"), ("plan", "exposed", "inf"), ("scale", "jitter", "-inf"),
    ("scale", "bucket", "nan"), ("tokenize", "validation", "inf"),
  ],
)  # fmt: skip
def test_flags_that_are_not_finite(ran, command, flag, value):
  code, config, error = ran(*[f"--config={DIGITS}"] * (command == "train"), f"--{flag}={value}", command=command)
  assert code == 2 and config is None and f"{flag} must be" in error and value in error and error.count("\n") == 1


def test_options_that_a_function_does_not_read(tmp_path):
  (tmp_path / "config.json").touch()  # no run can start in this folder
  for command, option in (
    ("compare", {"runtime": "threads"}),
    ("sweep", {"init_from": "x"}),
    ("train", {"keep_models": True}),
  ):
    options, key = RunOptions(**option), next(iter(option))
    refused(partial(check_read, command, options), command, option=key)
  call = partial(
    ddl.compare, str(ROOT / "configs/digits_compare.py"), workdir=tmp_path, options=RunOptions(runtime="threads")
  )
  refused(call, "compare", option="runtime")


@pytest.mark.parametrize("name", ["local_sgd", "async_easgd"])
def test_counts_below_one(name):
  for changes, key in (({"workers": 0}, "workers"), ({"algorithm": {"name": name, "period": 0}}, "algorithm.period")):
    refused(
      lambda changes=changes: default_experiment(**({"algorithm": {"name": name}} | changes)),
      f"config.{key} must be an integer >= 1, got 0.",
    )


@pytest.mark.parametrize(
  "algorithm, key",
  [
    ({"name": "dasgd", "delay": 10_000}, "delay"),
    ({"name": "dasgd", "delay": 41, "period": 1}, "delay"),
    ({"name": "pipe_sgd", "width": 10_000}, "width"),
  ],
)
def test_delays_beyond_the_run(algorithm, key):
  words = f"config.algorithm.{key} must be at most config.steps=40, got {algorithm[key]}."
  refused(lambda: default_experiment(steps=40, algorithm=algorithm), words)


@pytest.mark.parametrize(
  "algorithm, steps, key",
  [
    ({"name": "dasgd", "delay": 39, "period": 1}, 40, None),
    ({"name": "dasgd", "delay": 40, "period": 1}, 40, "delay"),
    ({"name": "streaming_diloco", "delay": 100, "period": 100}, 4, "delay"),
    ({"name": "overlap_sgp", "overlap": 10_000}, 4, "overlap"),
    ({"name": "sma", "period": 10_000}, 4, "period"),
    ({"name": "noloco", "period": 5}, 4, "period"),
    ({"name": "noloco", "period": 5}, 5, None),
    ({"name": "async_easgd", "period": 10_000}, 4, "period"),
    ({"name": "hierarchical_sgd", "outer_period": 10_000}, 4, "outer_period"),
  ],
)
def test_warning_for_exchanges_after_the_end_of_the_run(algorithm, steps, key, recwarn):
  """The warning contains the setting to decrease."""
  build(default_experiment(steps=steps, workers=4, algorithm=algorithm))
  messages = [str(warning.message) for warning in recwarn.list if "of trained values" in str(warning.message)]
  assert len(messages) == (key is not None)
  assert not key or f"decrease config.algorithm.{key} or increase config.steps" in messages[0]


@pytest.mark.parametrize("name, key", [("streaming_diloco", "fragments"), ("noloco", "pairings")])
def test_more_than_64_exchanges(name, key):
  algorithm = {"name": name, "period": 10**9, key: 10**9}
  refused(lambda: default_experiment(algorithm=algorithm), f"config.algorithm.{key} must be an integer in [1, 64]")


@pytest.mark.parametrize("name", ["cosine", "decay"])
def test_warmup_longer_than_the_run(name):
  schedule = {"name": name, "warmup": 50}
  refused(lambda: default_experiment(schedule=schedule, steps=50), "config.schedule.warmup with 50 steps")


def test_only_selects_labels_and_algorithms():
  config = load_config(ROOT / "configs" / "digits_compare.py")
  configs = expanded(config, variants(config))
  assert [*only(configs, ["easgd", "local SGD"])] == ["local SGD", "EASGD"]
  refused(lambda: only(configs, ["easgt"]), "easgt")


def test_nearest_command(monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["run.py", "tarin"])
  assert runpy.run_path(str(ROOT / "run.py"))["main"]() == 2
  assert "did you mean 'train'?" in capsys.readouterr().err


def test_out_of_memory(ran, monkeypatch):
  for error in (MemoryError("Unable to allocate 9 TiB"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of\nx")):

    def fail(*_, error=error):
      raise error

    monkeypatch.setattr("ddl.run.train.train", fail)
    code, _, text = ran(f"--config={DIGITS}")
    assert code == 2 and text.count("\n") == 1 and text.startswith("train: too large for this machine: ")
  error = jax.errors.JaxRuntimeError("INTERNAL: x")
  monkeypatch.setattr("ddl.run.train.train", lambda *_: (_ for _ in ()).throw(error))
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
  ({"": {}}, "got ''"),
  ({"a b": {}, "a_b": {}}, "'a b' and 'a_b'"),
]


@pytest.mark.parametrize("labels, words", [(labels, words) for labels, *words in LABELS])
def test_invalid_labels_and_changes(labels, words):
  refused(lambda: variants(with_labels(**labels)), "config.compare.algorithms", *words)


def test_valid_changes_of_a_label():
  result = variants(with_labels(x={"algorithm": {"period": 2.0}, "times": {"slow": [1, 2]}, "optimizer": {"b1": None}}))
  assert result["x"].algorithm.period == 2 and result["x"].times.slow == (1, 2) and result["x"].optimizer.b1 is None


# ---- sweeps


@pytest.fixture
def tune(monkeypatch, tmp_path, capfd):
  """Run a sweep of 4 steps in this process: (labels, **settings of config.sweep) -> content of tuned.json."""
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
  ({"validation": 0.0}, "config.sweep.validation must be > 0 (for example, 0.2), got 0."),
  ({"validation": 1.5}, "config.sweep.validation"),
  ({"pruning": True}, "config.sweep.pruning", "config.eval_every"),
  ({"trials": 0}, "config.sweep.trials must be an integer >= 1, got 0."),
  ({"trials": -2}, "config.sweep.trials must be an integer >= 1, got -2."),
  (
    {"space": {"DaSGD": {"keep": (2.0, 3.0)}}},
    "'DaSGD' is invalid in every trial: ",
    "keep must be in [0, 1], got 2.333.",
  ),
]


@pytest.mark.parametrize("changes, words", [(changes, words) for changes, *words in SPACES])
def test_invalid_sweeps(tune, tmp_path, changes, words):
  refused(lambda: tune(DASGD, **changes), *words)
  assert not (tmp_path / "sweep").exists()


def test_a_sweep_needs_a_validation_split():
  config = with_labels(**DASGD)
  with config.data.ignore_type():
    config.data.validation = 0.0
  refused(lambda: Sweep.from_config(config), "config.data.validation must be None or > 0 in a sweep, got 0.")


def test_invalid_trials_are_recorded_as_failed(tune, tmp_path, monkeypatch):
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


def test_points_have_the_types_of_their_bounds_and_four_digits():
  result = points({"a": (-2.0, 3.0), "b": (1, 8), "c": (10.0, 1e6)}, 16)
  assert all(-2 < p["a"] < 3 and type(p["b"]) is int and 10 <= p["c"] <= 1e6 for p in result)
  assert all(v == float(f"{v:.4g}") for p in result for v in p.values())


# ---- keys that a command does not read


ASYNC = f"--config={ROOT / 'configs' / 'async_easgd_digits.py'}"


@pytest.mark.parametrize(
  "name, argument, reason",
  [
    ("async_easgd", "network.blocks=4", "async_easgd is not lock-free"),
    ("async_easgd", "network.overlap=False", "async_easgd has no collective"),
    ("async_easgd", "barrier.name=bsp", ""),
    ("hogwild_easgd", "network.blocks=4", ""),
    ("easgd", "network.exchange_seconds=0.1", ""),
    ("easgd", "times.seconds=0.1", ""),
  ],
)
def test_keys_of_virtual_time_that_an_algorithm_does_not_read(ran, name, argument, reason):
  code, experiment, error = ran(ASYNC, f"--config.{argument}", f"--config.algorithm.name={name}")
  assert (code == 0) is (experiment is not None) is (not reason)
  assert not reason or (f"config.{argument.partition('=')[0]} must be unset for train" in error and reason in error)


def test_a_comparison_reads_the_keys_of_any_of_its_algorithms(ran, monkeypatch):
  monkeypatch.setattr("ddl.comparison.compare.compare", lambda *_: None)
  assert ran(ASYNC, "--config.barrier.name=bsp", command="compare")[0] == 0
  code, _, error = ran(ASYNC, "--config.barrier.name=bsp", "--only=sync SGD,Sync EASGD", command="compare")
  assert code == 2 and "config.barrier.name must be unset for compare" in error and "sync_sgd" in error


def test_warning_for_momentum_with_asynchronous_sgd():
  """arXiv 1605.09774: p workers that visit in turn act like a momentum of 1 - 1/p."""
  words = "async_sgd: 8 asynchronous workers .* 1 - 1/8 = 0.875 .* config.optimizer.momentum=0.9 adds to it; try 0"

  def make(name, momentum, workers):
    build(default_experiment(algorithm={"name": name}, optimizer={"momentum": momentum}, workers=workers))

  with pytest.warns(UserWarning, match=words):
    make("async_sgd", 0.9, 8)
  with pytest.warns(UserWarning, match="async_msgd: 8 asynchronous workers .* config.algorithm.momentum=0.9"):
    make("async_msgd", 0.0, 8)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for settings in (("async_sgd", 0.0, 8), ("async_sgd", 0.9, 1), ("async_easgd", 0.9, 8), ("sync_sgd", 0.9, 8)):
      make(*settings)


@pytest.mark.parametrize(
  ("key", "words"),
  [("straggler_rate", "straggler_rate has no effect: .*straggler_factor is 1"), ("down_seconds", "death_rate is 0")],
)
def test_warning_for_step_time_settings_without_effect(key, words):
  with pytest.warns(UserWarning, match=words):
    virtual_time.step_times(default_experiment(times={key: 0.5}))


@pytest.mark.parametrize(
  ("name", "blocks", "service", "warned"),
  [
    ("hogwild_sgd", 4, 0.0, True),
    ("hogwild_sgd", 4, 0.001, False),
    ("hogwild_sgd", Network.blocks, 0.0, False),
    ("async_sgd", 4, 0.0, False),  # refused on the command line
  ],
)
def test_warning_for_blocks_with_instantaneous_visits(name, blocks, service, warned):
  network = {"blocks": blocks, "service_seconds": service}
  result = default_experiment(algorithm={"name": name}, steps=3, network=network)
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    virtual_time.whole_run(result, result.make_algorithm())
  reported = [str(warning.message) for warning in seen]
  assert reported == warned * [
    "config.network.blocks=4 has no effect: config.network.service_seconds is 0, so visits never overlap"
  ]


def test_warning_for_a_second_momentum():
  build(default_experiment(algorithm={"name": "eamsgd"}))
  with pytest.warns(UserWarning, match="eamsgd already has momentum \\(0.99\\); config.optimizer.momentum adds"):
    build(default_experiment(algorithm={"name": "eamsgd"}, optimizer={"momentum": 0.9}))
  with pytest.warns(UserWarning, match="ef21 already has momentum \\(0.9\\); config.optimizer.momentum adds"):
    build(default_experiment(wrapper={"name": "ef21"}, optimizer={"momentum": 0.9}))


@pytest.mark.parametrize("name, path", [(name, path) for name, spec in COLLECTIVE.items() for path in spec.expects])
def test_warning_for_settings_that_an_algorithm_does_not_expect(name, path):
  expected, consequence = COLLECTIVE[name].expects[path]
  section, _, key = path.partition(".")
  other = {"clip_norm": 1.0, "name": "topk" if section == "wrapper" else "adam"}[key]

  def texts(value):
    with warnings.catch_warnings(record=True) as seen:
      warnings.simplefilter("always")
      build(default_experiment(**{"algorithm": {"name": name}, section: {key: value}}))
    return [text for text in (str(warning.message) for warning in seen) if path in text]

  assert texts(expected) == []
  assert texts(other) == [f"config.{path} should be {expected} for {name}, got {other}: {consequence}"]


# ---- damaged files and invalid folders


def test_workdir_below_a_file(tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
    refused(lambda path=path: workdir("x", RunOptions(workdir=str(path))), f"{tmp_path / 'file'} is a file")
  assert workdir("x", RunOptions(workdir=f"{tmp_path}/new/er")) == tmp_path / "new" / "er"


def test_damaged_checkpoint_and_config(tmp_path):
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
def test_examples_that_are_not_finite(value):
  images = np.zeros((5, 4, 4), np.float32)
  images[3, 1, 2] = value
  refused(lambda: source.labelled(images, np.zeros(5, np.int32), "x.npz"), "x.npz", "finite", "at index 3")


# ---- class numbers


@pytest.mark.parametrize("label", [2**31, 2**33 + 1, np.uint64(2**63 + 5)])
def test_labels_beyond_int32(label):
  labels = np.array([0, label], np.asarray(label).dtype)
  refused(lambda: source.labelled(np.zeros((2, 4, 4), np.uint8), labels, "x.npz"), "x.npz", str(label), "int32")


def test_too_many_classes(tmp_path):
  def data(top):
    np.savez(tmp_path / "x.npz", image=np.zeros((12, 4, 4), np.uint8), label=np.array([top] * 12))
    return npz(path=str(tmp_path / "x.npz"))

  assert data(10**6 - 1).meta["num_outputs"] == 10**6
  refused(lambda: data(2 * 10**9), "x.npz", "got 2,000,000,000", "Number the classes from 0")


def test_flags_overridden_by_labels_in_the_short_form():
  label = {"algorithm": "sync_sgd"}
  unread_keys.check("compare", "steps", [label])
  refused(
    lambda: unread_keys.check("compare", "algorithm.name", [label]), "pass only=LABELS", option="config.algorithm.name"
  )


@pytest.mark.parametrize("elastic", [False, True])
def test_sweeps_of_collectives_use_times_only_if_elastic(elastic):
  def check(key):
    unread_keys.check_virtual("sweep", [key], [default_experiment(elastic=elastic)])

  if elastic:
    check("times.death_rate")
    refused(lambda: check("barrier.name"), option="config.barrier.name")
  else:
    refused(lambda: check("times.death_rate"), option="config.times.death_rate")
