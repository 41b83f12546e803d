"""Results of `ddl.train`, `ddl.compare` and `ddl.load`, and their arguments."""

import contextlib
import inspect
import io
import json
import shutil

import jax
import numpy as np
import optax
import pytest
from flax import linen
from helpers.commands import Command, metrics
from helpers.comparisons import comparison, rising, undrawn, write_tuned
from ml_collections import ConfigDict

import ddl
import ddl.errors
from ddl.config.base import base
from ddl.config.options import RunOptions
from ddl.config.resolve import resolve
from ddl.report.figure import save_all

SMALL = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 8, "eval_every": 4}


@pytest.fixture(autouse=True)
def as_users_run():
  """Notebooks do not set strict promotion."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


@pytest.fixture
def empty_figures():
  with undrawn():
    yield


def halfway(inner, *, period: int = 2):
  """Return local SGD, as a user-defined algorithm."""
  return ddl.COLLECTIVE["local_sgd"].factory(inner, period=period)


def test_a_loaded_run_equals_the_returned_one(tmp_path):
  run = ddl.train(algorithm=halfway, workdir=tmp_path / "a", **SMALL)
  loaded = ddl.load(tmp_path / "a")
  assert run.folder == loaded.folder == tmp_path / "a" and run.step == loaded.step == 8
  assert loaded.config["algorithm"]["period"] == 2 and loaded.config["workers"] == 2
  lines = metrics(tmp_path / "a", timeless=False)
  assert run.metrics.to_dict("records")[-1] == pytest.approx(lines[-1]) and list(run.metrics.step) == [0, 4, 8]
  result = loaded.evaluate()
  assert result == pytest.approx({"loss": lines[-1]["test_loss"], "accuracy": lines[-1]["test_accuracy"]}, rel=1e-5)
  assert loaded.evaluate(source=loaded.data.train) != result
  with pytest.raises(ValueError, match=r"^model must be a saved model, .* pass them as source\.$"):
    loaded.evaluate(loaded.data.train)
  shapes = jax.eval_shape(loaded.model.init, jax.random.key(0))[0]
  assert jax.tree.map(lambda x: x.shape, loaded.params) == jax.tree.map(lambda x: x.shape, shapes)


@pytest.mark.slow
def test_parameters_do_not_depend_on_the_number_of_devices(tmp_path):
  settings = {"algorithm": {"name": "easgd", "period": 3}, "optimizer": {"momentum": 0.9}, **SMALL}
  run = ddl.train(workdir=tmp_path / "a", **settings)
  other = ddl.train(workdir=tmp_path / "b", options=RunOptions(devices=1), **settings)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), run.params, other.params)


@pytest.mark.slow
def test_the_command_resumes_a_run_of_the_library_and_init_from_takes_a_folder(tmp_path):
  ddl.train(workdir=tmp_path / "a", options=RunOptions(steps_per_call=2), **SMALL)
  done = Command("train", "--resume", f"--workdir={tmp_path}/a").end()
  assert done.code == 0 and "complete" in done.out, done.error
  finished = Command("train", "--config=configs/digits.py", "--config.steps=4", "--config.model.hidden=(8,)",
                 f"--workdir={tmp_path}/b").end()  # fmt: skip
  assert finished.code == 0, finished.error
  start = ddl.train(workdir=tmp_path / "c", options=RunOptions(init_from=str(tmp_path / "b")), **SMALL)
  first, last = metrics(tmp_path / "c")[0], metrics(tmp_path / "b")[-1]
  assert first["test_loss"] == pytest.approx(last["test_loss"], rel=1e-6) and start.step == 8


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
  """A comparison with saved models and empty files of figures, and its output."""
  labels, folder = {"mine": halfway, "theirs": {"name": "easgd", "period": 2}}, tmp_path_factory.mktemp("c")
  options, out = RunOptions(keep_models=True), io.StringIO()
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
    contextlib.redirect_stdout(out),
    undrawn(),
  ):
    result = ddl.compare(algorithms=labels, seeds=2, target=0.5, workdir=folder, options=options, **SMALL)
  return result, out.getvalue()


def test_a_loaded_comparison_equals_the_returned_one(compared, tmp_path):
  compared, _ = compared
  folder = compared.folder
  assert compared.info["target"]["value"] == 0.5 and compared.runs["theirs"][1].config["algorithm"]["period"] == 2
  loaded = ddl.load(folder)
  assert loaded.info == compared.info and loaded.report.exists()
  assert list(loaded.runs) == ["mine", "theirs"] and len(loaded.runs["mine"]) == 2
  frame = loaded.metrics
  assert list(frame.columns[:3]) == ["label", "seed", "step"] and len(frame) == 2 * 2 * 3
  rows = frame[(frame.label == "mine") & (frame.seed == 1)]
  assert list(rows.test_loss) == [line["test_loss"] for line in metrics(folder / "mine/seed-1")]
  assert list(loaded.table.label) == ["mine", "theirs"] and {"first", "second", "p"} <= set(loaded.pairs.columns)
  assert set(loaded.figures) == {path.stem for path in (folder / "figures").glob("*.pdf")} != set()
  figure = loaded.figures["accuracy_vs_examples"]
  save_all(tmp_path, [figure])  # as the report does, but with a drawn figure
  svg = (tmp_path / "figures/accuracy_vs_examples.svg").read_bytes()
  assert figure.save(tmp_path / "a.svg").read_bytes() == svg and b"</svg>" in svg
  assert figure._repr_png_().startswith(b"\x89PNG")
  last = loaded.runs["mine"][1]
  assert last.evaluate()["loss"] == pytest.approx(rows.test_loss.iloc[-1], rel=1e-5)


def test_a_comparison_prints_progress_and_its_repr_has_the_table(compared, tmp_path):
  compared, out = compared
  text = repr(compared)
  assert "  seed 1: test_accuracy" in out and out.splitlines()[-1].endswith(str(compared.report))
  assert "reached" not in out and "Student" not in out
  lines = text.splitlines()
  assert lines[0].endswith(str(compared.folder)) and len(lines) <= 14 and max(map(len, lines[1:])) <= 100
  assert all(word in text for word in ("mine and theirs", "seeds: 0 and 1", "50 %", "0/2 reached")), text
  run = repr(compared.runs["mine"][1])
  assert all(word in run for word in (f"{compared.folder}/mine/seed-1", "halfway", "2 workers", "step 8 of 8"))
  for values, name in ((compared.figures, "acc"), (compared.runs, "yours")):
    with pytest.raises(KeyError) as error:
      values[name]
    assert repr(name) in str(error.value) and all(known in str(error.value) for known in values)
    assert values.get(name) is None
  figures, runs = repr(compared.figures), repr(compared.runs)
  assert all(name in figures for name in compared.figures) and ".save(" in figures and len(figures) < 600
  assert runs.startswith("2 labels by name:") and "'mine', 'theirs'" in runs


def test_the_repr_of_a_damaged_comparison_raises_no_error(compared, tmp_path):
  shutil.copytree(compared[0].folder, tmp_path / "c")
  loaded = ddl.load(tmp_path / "c")
  run = loaded.runs["mine"][1]
  (tmp_path / "c/comparison.json").write_text("{")
  (tmp_path / "c/mine/seed-1/metrics.jsonl").unlink()
  assert len(repr(ddl.load(tmp_path / "c")).splitlines()) == 2 and len(repr(run).splitlines()) == 2


def test_the_repr_of_many_labels_is_short(tmp_path):
  runs = {f"algorithm {n}": [rising(0.1, 0.5, 0.96)] * 2 for n in range(14)}
  text = repr(ddl.load(comparison(tmp_path, runs)))
  assert len(text.splitlines()) < 10 and "14 labels" in text


@pytest.mark.slow
def test_the_command_resumes_a_comparison_of_the_library(tmp_path, empty_figures):
  labels = {"a": {"algorithm": "sync_sgd"}, "b": {"algorithm": "local_sgd"}}
  best = {"a": {"optimizer": {"learning_rate": 0.03}}}
  tuned = write_tuned(tmp_path / "tuned.json", resolve(None, {"compare": {"algorithms": labels}, **SMALL}), best)
  compared = ddl.compare(
    compare={"seeds": (0,), "algorithms": labels}, only=["a"], clusters=["ethernet_10g"], tuned=tuned,
    workdir=tmp_path / "c", **SMALL,
  )  # fmt: skip
  tuned.unlink()  # the folder contains a copy
  done = Command("compare", "--resume", f"--workdir={compared.folder}").end()
  assert done.code == 0, done.error
  page = ddl.load(compared.folder).info
  assert [entry["label"] for entry in page["algorithms"]] == ["a"] and len(page["clusters"]) == 1
  assert page["algorithms"][0]["settings"]["optimizer"]["learning_rate"] == 0.03


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"step": 3}, ["step", "steps"]),
    ({"model": {"hidden": "x"}}, ["hidden"]),
    ({"algorithm": "esgd"}, ["easgd"]),
    ({"algorithm": lambda inner: inner}, ["top level"]),
    ({"workers": "many"}, ["workers"]),
    ({"compare": {"algorithms": {"a": {"algorithm": "esgd"}}}}, ["easgd"]),
  ],
)
def test_invalid_settings_are_named_in_one_line(tmp_path, changes, words):
  with pytest.raises(ValueError) as error:
    (ddl.compare if "compare" in changes else ddl.train)(workdir=tmp_path / "a", **SMALL | changes)
  assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


@pytest.mark.parametrize(
  "algorithms, sections",
  [
    (
      ["sync_sgd", halfway],
      {"sync_sgd": {"algorithm": {"name": "sync_sgd"}}, "halfway": {"algorithm": ddl.custom(halfway)}},
    ),
    (
      {"a": {"algorithm": "easgd", "optimizer": {"learning_rate": 0.05}}},
      {"a": {"algorithm": {"name": "easgd"}, "optimizer": {"learning_rate": 0.05}}},
    ),
  ],
)
def test_short_forms_of_algorithms_and_seeds(algorithms, sections):
  config = resolve(None, {"compare": {"algorithms": algorithms, "seeds": 3}})
  assert config.compare.algorithms.to_dict() == sections and config.compare.seeds == (0, 1, 2)


@pytest.mark.parametrize("algorithms", ["easgd", 3])
def test_algorithms_must_be_a_list_or_a_dictionary(algorithms):
  with pytest.raises(ddl.errors.OptionError, match=r"algorithms must be a list"):
    ddl.compare(algorithms=algorithms)


@pytest.mark.parametrize(
  "algorithms", [["easgd", "easgd"], [{"name": "dasgd", "period": 4}, {"name": "dasgd", "period": 8}], [{"period": 4}]]
)
def test_a_list_of_algorithms_must_have_distinct_names(algorithms):
  with pytest.raises(ddl.errors.OptionError, match=r"algorithms must be "):
    ddl.compare(algorithms=algorithms)


@pytest.mark.parametrize("seeds", [0, -2])
def test_a_number_of_seeds_must_be_positive(seeds):
  with pytest.raises(ddl.errors.OptionError, match=rf"seeds must be .*, got {seeds}\."):
    ddl.compare(algorithms=["easgd"], seeds=seeds)


@pytest.mark.parametrize("call", [ddl.build, ddl.train, ddl.compare, ddl.sweep])
def test_help_lists_all_settings_with_their_defaults(call):
  parameters, config = inspect.signature(call).parameters, base()
  for key in {*config} - {"compare", "sweep", "network"}:
    default = config[key].name if isinstance(config[key], ConfigDict) else config[key]
    assert parameters[key].default == default and parameters[key].kind is inspect.Parameter.KEYWORD_ONLY
  assert "workers: number of workers, p (8)" in call.__doc__ and "changes" not in parameters


@pytest.mark.parametrize(
  "section, value, words",
  [
    ("schedule", optax.cosine_decay_schedule(0.1, 10), ["(rate, steps, *, settings) -> optax.Schedule"]),
    ("schedule", 0.1, ['{"name": "cosine", "floor": 0.1}', "got float"]),
    ("optimizer", 0.1, ["optax.GradientTransformation", "got float"]),
    ("model", linen.Dense(3), ["ddl.from_flax(module, meta)", "got Dense"]),
    ("data", np.zeros(3), ["ddl.Data"]),
    ("wrapper", ddl.COLLECTIVE["sync_sgd"].factory(optax.sgd(0.1)), ['{"name": "topk"']),
    ("algorithm", ddl.COLLECTIVE["sync_sgd"].factory(optax.sgd(0.1)), ["got Algorithm"]),
    ("partition", 3, ["list[np.ndarray]"]),
  ],
)
def test_a_section_of_the_wrong_type_is_refused_with_an_example(section, value, words):
  for call in (ddl.train, ddl.compare, ddl.sweep):
    with pytest.raises(ddl.errors.OptionError) as error:
      call(**{section: value})
    message = str(error.value)
    assert error.value.option == section and all(word in message for word in words) and "\n" not in message


@pytest.mark.parametrize(
  "call, argument",
  [
    (ddl.train, "workdir"),
    (ddl.compare, "workdir"),
    (ddl.compare, "tuned"),
    (ddl.sweep, "workdir"),
    (ddl.load, "folder"),
  ],
)
def test_folders_must_be_paths(tmp_path, monkeypatch, call, argument):
  monkeypatch.chdir(tmp_path)
  for value in (3, None, ["a"], b"a", {"a": 1}):
    with pytest.raises(ddl.errors.OptionError, match=f"^{argument} must be a path "):
      call(**{argument: value})


def test_trust_code_must_be_a_bool(tmp_path):
  with pytest.raises(ValueError, match="trust_code must be True or False, got 'no'"):
    ddl.load(tmp_path, trust_code="no")


def test_a_folder_without_a_run_is_refused(tmp_path):
  for folder in (tmp_path, tmp_path / "missing"):
    with pytest.raises(ValueError, match="must contain a run"):
      ddl.load(folder)


def test_a_model_of_another_shape_and_a_damaged_model_are_refused(tmp_path):
  run = ddl.train(workdir=tmp_path / "a", **SMALL)
  file = run.folder / "model.msgpack"
  with pytest.raises(ValueError, match="Dense_0"):
    ddl.train(workdir=tmp_path / "b", options=RunOptions(init_from=str(file)), **SMALL | {"model": {"hidden": (4,)}})
  for content in (b"", b"\x93", json.dumps({"step": 1}).encode()):
    file.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
      _ = ddl.load(run.folder).params
