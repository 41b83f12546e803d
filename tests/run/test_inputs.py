"""A resume with other data or code than a folder was started with, and code that a folder names."""

import json
import os
import shutil
import sys

import grain
import jax
import numpy as np
import pytest
from helpers.comparisons import undrawn
from helpers.streams import FEW
from PIL import Image

import ddl
from ddl.config import default_experiment, trusted_code
from ddl.config.trusted_code import Untrusted
from ddl.data.image_arrays import npz
from ddl.data.image_folder import image_folder
from ddl.data.stream import from_grain_stream
from ddl.data.tokens import text, tokens
from ddl.run import folder as run_dir
from ddl.run import inputs, processes

NET = """
from pathlib import Path
import jax.numpy as jnp
from ddl import Model
from layers import forward
Path({ran!r}).touch()


def net(meta, *, width: int = 1):
  def loss(params, extra, batch, key):
    return jnp.mean((forward(params, jnp.asarray(batch["x"])) - batch["y"][:, None]) ** 2), extra
  return Model(lambda key: ({{"w": jnp.zeros((*meta["shape"], width))}}, {{}}), loss, dense=True)
"""
LAYERS = "def forward(params, x):\n  return x @ params['w']\n"
SMALL = {"workers": 2, "batch": 8, "steps": 8, "eval_every": 4}
LABELS = {"sync": {"algorithm": "sync_sgd"}, "local": {"algorithm": {"name": "local_sgd", "period": 2}}}
RESUME = ddl.RunOptions(resume=True)
ALLOW = ddl.RunOptions(resume=True, allow_changed_inputs=True)
TRUST = ddl.RunOptions(resume=True, trust_code=True)


@pytest.fixture(autouse=True)
def as_users_run():
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    yield


def saved_npz(file, change=0):
  """90 examples, of which `change` have other labels."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(90, 4)).astype(np.float32), rng.integers(0, 3, 90)
  y[:change] = (y[:change] + 1) % 3
  np.savez(file, x=x, y=y)
  return {"data": {"name": "npz", "path": str(file)}, "model": {"hidden": (4,)}, **SMALL}


# ---- fingerprints


def fingerprint(data, name, **settings):
  return inputs.of([default_experiment(data={"name": name, **settings})], data)


def test_arrays_count_and_not_the_file(tmp_path):
  saved_npz(tmp_path / "a.npz")
  saved_npz(tmp_path / "b.npz")
  os.utime(tmp_path / "b.npz", (0, 0))
  saved_npz(tmp_path / "c.npz", change=1)
  a, b, c = (fingerprint(npz(path=f"{tmp_path}/{x}.npz"), "npz", path=f"{tmp_path}/{x}.npz") for x in "abc")
  assert a == b and {*a} == {"training examples", "test examples"}
  assert [a[split] == c[split] for split in sorted(a)].count(False) == 1  # the one label lies in one of them


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "sampled"])
def test_files_that_are_read_when_they_are_needed(tmp_path, monkeypatch, whole):
  if not whole:
    monkeypatch.setattr(inputs, "WHOLE", 16)
    monkeypatch.setattr(inputs, "SAMPLE", 2**9)
    monkeypatch.setattr(inputs, "BLOCK", 2)
  ids = np.arange(640, dtype=np.uint16) % 50
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    for part in ("train", "val"):
      ids.tofile(tmp_path / name / f"{part}.bin")
  load = lambda name: tokens(path=f"{tmp_path}/{name}", length=8, vocabulary=50)  # noqa: E731
  same = [fingerprint(load(x), "tokens", path=f"{tmp_path}/{x}", length=8, vocabulary=50) for x in "ab"]
  assert same[0] == same[1] and "data files" in same[0]
  (tmp_path / "b/notes.txt").write_text("of no interest")
  ids[500:505] = 7
  ids.tofile(tmp_path / "b/train.bin")
  other = fingerprint(load("b"), "tokens", path=f"{tmp_path}/b", length=8, vocabulary=50)
  assert other["data files"] != same[0]["data files"]


def test_a_folder_of_images(tmp_path):
  for kind, grey in (("cat", 10), ("dog", 200)):
    for number in range(6):
      (tmp_path / "p" / kind).mkdir(parents=True, exist_ok=True)
      Image.new("RGB", (4, 4), (grey + number, 0, 0)).save(tmp_path / "p" / kind / f"{number}.png")
  path = str(tmp_path / "p")
  of = lambda: fingerprint(image_folder(path=path), "image_folder", path=path)  # noqa: E731
  first = of()
  (tmp_path / "p/.hidden").mkdir()
  (tmp_path / "p/.hidden/x.png").write_bytes(b"x")
  (tmp_path / "p/cat/notes.txt").write_text("of no interest")
  assert of() == first
  a, b = tmp_path / "p/cat/3.png", tmp_path / "p/dog/3.png"
  one, two = a.read_bytes(), b.read_bytes()
  a.write_bytes(two)
  b.write_bytes(one)
  assert of()["data files"] != first["data files"]


def test_a_text_a_trace_and_a_graph(tmp_path):
  (tmp_path / "t.txt").write_text("abcdefgh" * 200)
  first = fingerprint(text(path=f"{tmp_path}/t.txt", length=8), "text", path=f"{tmp_path}/t.txt", length=8)
  (tmp_path / "t.txt").write_text("abcdefgh" * 100 + "abcdefgg" + "abcdefgh" * 99)
  assert fingerprint(text(path=f"{tmp_path}/t.txt", length=8), "text", path=f"{tmp_path}/t.txt", length=8) != first
  np.save(tmp_path / "w.npy", np.full((8, 8), 1 / 8))
  np.savetxt(tmp_path / "steps.csv", np.ones((300, 8)), delimiter=",")
  experiment = default_experiment(
    algorithm={"name": "d_psgd", "graph": f"{tmp_path}/w.npy"}, times={"name": "trace", "path": f"{tmp_path}/steps.csv"}
  )
  data = text(path=f"{tmp_path}/t.txt", length=8)
  before = inputs.of([experiment], data)
  np.savetxt(tmp_path / "steps.csv", np.full((300, 8), 2), delimiter=",")
  after = inputs.of([experiment], data)
  assert {key for key in before if before[key] != after[key]} == {f"{tmp_path}/steps.csv"}
  assert f"{tmp_path}/w.npy" in after and inputs.of_label(after, experiment) == after
  assert not [key for key in inputs.of_label(after, default_experiment()) if key.startswith("/")]


def test_large_arrays_are_sampled_but_all_labels_count(monkeypatch):
  monkeypatch.setattr(inputs, "WHOLE", 64)
  monkeypatch.setattr(inputs, "SAMPLE", 64)
  x, y = np.zeros((2000, 2), np.float32), np.zeros(2000, np.int32)

  def of(x, y):
    source = ddl.data.source.in_memory(x, y, y)
    return inputs.of([default_experiment()], ddl.Data(source, source, {}))["training examples"]

  changed = y.copy()
  changed[1] = 1
  assert of(x, y) == of(x.copy(), y) != of(x, changed)


def test_a_sample_has_the_last_examples_too_and_a_type_counts(monkeypatch):
  x, y = np.ones((2000, 2), np.float32), np.zeros(2000, np.int32)

  def of(x, validation=None):
    source = ddl.data.source.in_memory(x, y, y)
    validation = validation if validation is None else ddl.data.source.in_memory(validation, y, y)
    return inputs.of([default_experiment()], ddl.Data(source, source, {}, validation))

  assert of(x) != of(x.view(np.int32))
  one, other = of(x, x), of(x, 2 * x)
  assert {name for name in one if one[name] != other[name]} == {"validation examples"}
  monkeypatch.setattr(inputs, "WHOLE", 64)
  monkeypatch.setattr(inputs, "SAMPLE", 64)
  late = x.copy()
  late[-100:] = 2
  assert of(x) != of(late)


def test_the_first_examples_of_a_stream():
  def of(first):
    rows = [{"x": np.full(2, k, np.float32), "y": np.int32(0)} for k in (first, 1, 2, 3)]
    make = lambda worker, workers, seed: grain.MapDataset.source(rows).repeat().to_iter_dataset(FEW)  # noqa: E731
    source = from_grain_stream(make, size=4)
    return inputs.of([default_experiment()], ddl.Data(source._replace(take=lambda k: {}), source, {}))

  assert of(0) == of(0) and of(0)["training examples"] != of(7)["training examples"]


def test_files_of_options(tmp_path):
  (tmp_path / "a").mkdir()
  for name in ("a/model.msgpack", "tuned.json"):
    (tmp_path / name).write_text("one")
  source = ddl.data.source.in_memory(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
  of = lambda: inputs.of(  # noqa: E731
    [default_experiment()], ddl.Data(source, source, {}), str(tmp_path / "a"), str(tmp_path / "tuned.json")
  )
  first = of()
  (tmp_path / "a/model.msgpack").write_text("other")
  second = of()
  (tmp_path / "tuned.json").write_text("other")
  third = of()
  assert [key for key in first if first[key] != second[key]] == ["init_from"]
  assert [key for key in first if second[key] != third[key]] == ["tuned"]


def test_a_run_or_a_circle_below_the_data_does_not_count(tmp_path):
  for part in ("train", "val"):
    (np.arange(640, dtype=np.uint16) % 50).tofile(tmp_path / f"{part}.bin")
  data = tokens(path=str(tmp_path), length=8, vocabulary=50)
  of = lambda: fingerprint(data, "tokens", path=str(tmp_path), length=8, vocabulary=50)["data files"]  # noqa: E731
  first = of()
  (tmp_path / "circle").symlink_to(tmp_path)
  assert of() == first
  (tmp_path / "runs").mkdir()
  (tmp_path / "runs/train.bin").write_bytes(b"1234")
  assert of() != first
  (tmp_path / "runs/about.json").touch()
  assert of() == first


def test_where_one_file_ends_and_another_begins_counts(tmp_path):
  ids, result = np.arange(1280, dtype=np.uint16) % 50, set()
  for first in (640, 600):
    ids[:first].tofile(tmp_path / "train.bin")
    ids[first:].tofile(tmp_path / "val.bin")
    data = tokens(path=str(tmp_path), length=8, vocabulary=50)
    result.add(fingerprint(data, "tokens", path=str(tmp_path), length=8, vocabulary=50)["data files"])
  assert len(result) == 2


def test_prepared_files_of_tensorflow_datasets(tmp_path):
  for name in ("mnist", "cifar10"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "part.tfrecord").write_text("one")
  source = ddl.data.source.in_memory(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
  data = ddl.Data(source, source, {})
  of = lambda: fingerprint(data, "tfds", dataset="mnist", data_dir=str(tmp_path))["data files"]  # noqa: E731
  first = of()
  (tmp_path / "cifar10/part.tfrecord").write_text("two")
  assert of() == first
  (tmp_path / "mnist/part.tfrecord").write_text("two")
  assert of() != first


def test_processes_must_have_the_same_inputs():
  source = ddl.data.source.in_memory(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
  data = ddl.Data(source, source, {"description": "zeros"})
  one, other = (processes.text({}, ddl.RunOptions(), data, {"data files": each}) for each in "ab")
  assert "inputs" in processes.difference(one, other, 1)


def test_files_of_an_address(tmp_path):
  package = tmp_path / "nets" / "parts"
  package.mkdir(parents=True)
  for name in ("nets/__init__.py", "nets/parts/__init__.py", "nets/parts/blocks.py", "unrelated.py"):
    (tmp_path / name).write_text("")
  (package / "net.py").write_text("import os, jax\nfrom . import blocks\nfrom nets import near\nimport beside\n")
  (tmp_path / "nets/near.py").write_text("import near2\n")
  (tmp_path / "near2.py").write_text("")
  (package / "beside.py").write_text("import net\n")  # a circle
  result = trusted_code.files(f"{package}/net.py:net")
  names = {str(each.relative_to(tmp_path)) for each in result}
  assert names == {
    "nets/__init__.py", "nets/parts/__init__.py", "nets/parts/blocks.py", "nets/parts/net.py", "nets/near.py",
    "near2.py", "nets/parts/beside.py",
  }  # fmt: skip
  assert trusted_code.files("ddl.models:MODELS") == [] and trusted_code.files("no.such:net") == []
  assert [each.name for each in trusted_code.files("textwrap:fill")] == ["textwrap.py"]


# ---- resumes


def test_a_run_with_other_data(tmp_path, capsys):
  settings = saved_npz(tmp_path / "d.npz")
  run = ddl.train(workdir=tmp_path / "a", **settings)
  (run.folder / "result.json").unlink()
  saved_npz(tmp_path / "d.npz")  # the same examples once more
  ddl.train(workdir=tmp_path / "a", options=RESUME)
  (run.folder / "result.json").unlink()
  saved_npz(tmp_path / "d.npz", change=90)
  with pytest.raises(ValueError, match="have changed: training examples, test examples") as error:
    ddl.train(workdir=tmp_path / "a", options=RESUME)
  assert "\n" not in str(error.value) and "allow_changed_inputs" in str(error.value)
  run = ddl.train(workdir=tmp_path / "a", options=ALLOW)
  assert run_dir.input_changes(run.folder) == [{"changed": ["training examples", "test examples"], "step": 8}]
  assert "Changed contents since step 8: training examples, test examples." in repr(ddl.load(run.folder))
  (run.folder / "result.json").unlink()
  ddl.train(workdir=tmp_path / "a", options=RESUME)  # the folder records what it has become
  (run.folder / "result.json").unlink()
  (run.folder / "inputs.json").unlink()
  capsys.readouterr()
  ddl.train(workdir=tmp_path / "a", options=RESUME)
  assert f"{run.folder} has no inputs.json, as an older version" in capsys.readouterr().out
  (run.folder / "result.json").unlink()
  (run.folder / "inputs.json").write_text("{")
  with pytest.raises(ValueError, match=r"inputs\.json is damaged"):
    ddl.train(workdir=tmp_path / "a", options=RESUME)


@pytest.mark.parametrize("content", ['{"inputs": []}', '{"inputs": {}, "changes": [3]}', "[]"])
def test_a_record_of_inputs_that_is_no_such_record(tmp_path, content):
  (tmp_path / "inputs.json").write_text(content)
  with pytest.raises(ValueError, match=rf"^{tmp_path}/inputs\.json is damaged"):
    run_dir.recorded_inputs(tmp_path)


def test_what_a_start_that_was_killed_has_recorded_is_removed(tmp_path):
  run_dir.record(tmp_path, {}, None, {"training examples": "a"})
  assert run_dir.recorded_inputs(tmp_path) and not run_dir.RunFolder(tmp_path).has_begun()
  assert run_dir.recorded_inputs(tmp_path) == {}


def test_each_change_is_kept(tmp_path):
  for step, digest in enumerate("abbc"):
    run_dir.record_inputs(tmp_path, {"data files": digest}, {"step": step})
  assert run_dir.input_changes(tmp_path) == [{"changed": ["data files"], "step": step} for step in (1, 3)]
  assert run_dir.recorded_inputs(tmp_path) == {"data files": "c"}


@pytest.mark.parametrize("option", ["allow_changed_inputs", "trust_code"])
def test_what_only_a_resume_reads(option):
  with pytest.raises(ValueError, match=f"{option} must be False without resume"):
    ddl.RunOptions(**{option: True})


def test_a_record_cannot_allow_other_data(tmp_path, call):
  folder = ddl.train(workdir=tmp_path / "a", **saved_npz(tmp_path / "d.npz")).folder
  (folder / "result.json").unlink()
  record = json.loads((folder / "experiment.json").read_text())
  record["options"]["allow_changed_inputs"] = True
  (folder / "experiment.json").write_text(json.dumps(record))
  saved_npz(tmp_path / "d.npz", change=90)
  assert call("train", "--resume", f"--workdir={folder}")[0] == 2
  with pytest.raises(ValueError, match="have changed: training examples"):
    ddl.train(workdir=folder, options=RESUME)
  assert run_dir.input_changes(folder) == []


def test_a_comparison_with_other_data(tmp_path):
  settings = saved_npz(tmp_path / "d.npz")
  compare = {"seeds": (0,), "target": 0.3, "algorithms": LABELS}
  ddl.compare(compare=compare, workdir=tmp_path / "c", **settings)
  for each in ("c", "c/sync/seed-0", "c/local/seed-0"):
    assert {*run_dir.recorded_inputs(tmp_path / each)} == {"training examples", "test examples"}
  saved_npz(tmp_path / "d.npz", change=90)
  more = compare | {"seeds": (0, 1)}
  before = sorted(tmp_path.glob("c/*/seed-*"))
  with pytest.raises(ValueError, match="have changed: training examples"):
    ddl.compare(compare=more, workdir=tmp_path / "c", options=RESUME, **settings)
  assert sorted(tmp_path.glob("c/*/seed-*")) == before
  compared = ddl.compare(compare=more, workdir=tmp_path / "c", options=ALLOW, **settings)
  [change] = compared.info["changed_inputs"]
  assert change["runs"] == {"local/seed-0": None, "sync/seed-0": None} and "test examples" in change["changed"]
  text = (
    "Changed contents since earlier runs: training examples, test examples. Earlier runs: local/seed-0, sync/seed-0."
  )
  assert text in compared.report.read_text() and text in " ".join(repr(compared).split())
  assert ddl.compare(workdir=tmp_path / "c", options=RESUME).info["changed_inputs"] == [change]


def test_a_sweep_with_other_data(tmp_path):
  settings = saved_npz(tmp_path / "d.npz") | {"compare": {"algorithms": LABELS}}
  ddl.sweep(only=["sync"], trials=1, workdir=tmp_path / "s", **settings)
  for each in ("s", "s/sync/trial-0/seed-0"):
    assert "validation examples" in run_dir.recorded_inputs(tmp_path / each)
  saved_npz(tmp_path / "d.npz", change=90)
  with pytest.raises(ValueError, match="have changed: training examples"):
    ddl.sweep(only=["sync"], trials=2, workdir=tmp_path / "s", options=RESUME, **settings)
  swept = ddl.sweep(only=["sync"], trials=2, workdir=tmp_path / "s", options=ALLOW, **settings)
  assert "Earlier runs: sync/trial-0/seed-0." in repr(swept) and len(swept.trials) == 2


# ---- code


@pytest.fixture
def run(tmp_path):
  """A run of a user-defined model, and the file that its import leaves behind."""
  (tmp_path / "code").mkdir()
  ran = tmp_path / "ran"
  (tmp_path / "code/net.py").write_text(NET.format(ran=str(ran)))
  (tmp_path / "code/layers.py").write_text(LAYERS)
  settings = {"model": {"name": f"{tmp_path}/code/net.py:net"}, "data": {"name": "least_squares"}, **SMALL}
  folder = ddl.train(workdir=tmp_path / "a", **settings).folder
  (folder / "result.json").unlink()
  ran.unlink()
  forget()
  yield folder, ran
  forget()


def forget():
  """As in a process that has not imported the files yet."""
  for name in [*sys.modules]:
    if name.partition("@")[0] in ("net", "layers", "rule"):
      del sys.modules[name]


def address(folder, name):
  """Let a folder name another model."""
  for file in ("config.json", "experiment.json"):
    record = json.loads((folder / file).read_text())
    record.get("config", record)["model"]["name"] = name
    (folder / file).write_text(json.dumps(record))


def test_the_recorded_files_run(run):
  folder, ran = run
  loaded = ddl.load(folder)
  assert len(loaded.metrics) == 3 and loaded.config["model"]["name"].endswith("net.py:net") and "step 8" in repr(loaded)
  assert not ran.exists()
  assert loaded.params["w"].shape[1] == 1 and ran.exists()


@pytest.mark.parametrize("changed", ["net.py", "layers.py"])
def test_a_file_that_has_changed(run, call, changed):
  folder, ran = run
  file = folder.parent / "code" / changed
  file.write_text(file.read_text() + "# edited\n")
  for load in (lambda: ddl.load(folder).model, lambda: ddl.train(workdir=folder, options=RESUME)):
    with pytest.raises(ValueError, match=f"{file} has changed since {folder} was written") as error:
      load()
    assert "\n" not in str(error.value) and "trust_code" in str(error.value)
  code, _, error = call("train", "--resume", f"--workdir={folder}")
  assert code == 2 and str(file) in error and "allow_changed_inputs" in error and error.count("\n") == 1
  with pytest.raises(ValueError, match=f"have changed: {file}; "):  # the code is trusted, the run another one
    ddl.train(workdir=folder, options=TRUST)
  forget()
  ran.unlink()
  assert ddl.load(folder, trust_code=True).model and ran.exists()
  assert call("train", "--resume", f"--workdir={folder}", "--allow_changed_inputs")[0] == 0
  assert run_dir.input_changes(folder) == [{"changed": [str(file)], "step": 8}]


def test_processes_may_differ_in_what_they_allow(run, monkeypatch):
  seen = []

  def compared(config, options, *_):
    seen.append(options)
    raise InterruptedError

  monkeypatch.setattr(processes, "check", compared)
  for options in (ALLOW, TRUST, RESUME):
    with pytest.raises(InterruptedError):
      ddl.train(workdir=run[0], options=options)
  assert {processes.text({}, each) for each in seen} == {processes.text({}, seen[0])}


@pytest.mark.parametrize("way", ["inside", "with a hash", "..", "link in", "link out", "package", "no hash"])
def test_a_file_of_the_folder(run, call, monkeypatch, way):
  folder, ran = run
  code = folder.parent / "code"
  shutil.copytree(code, folder / "code")
  names = {
    "link out": f"{folder}/out.py", "link in": f"{folder.parent}/in.py", "no hash": f"{folder.parent}/new.py",
    "..": f"{folder.parent}/code/../a/code/net.py", "package": "code.net",
  }  # fmt: skip
  named = names.get(way, f"{folder}/code/net.py")
  if way == "link out":
    (folder / "out.py").symlink_to(code / "net.py")
  if way == "link in":
    (folder.parent / "in.py").symlink_to(folder / "code/net.py")
  if way == "no hash":
    shutil.copy(code / "net.py", folder.parent / "new.py")
  if way == "package":
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "code", raising=False)
    (folder / "code/__init__.py").touch()
  if way == "with a hash":
    record = json.loads((folder / "inputs.json").read_text())
    record["inputs"] |= {str(each): trusted_code.digest(each) for each in (folder / "code").iterdir()}
    (folder / "inputs.json").write_text(json.dumps(record))
  address(folder, f"{named}:net")
  why = "new.py has no hash" if way == "no hash" else "is inside the run folder"
  for load in (lambda: ddl.load(folder).model, lambda: ddl.train(workdir=folder, options=ALLOW)):
    with pytest.raises(Untrusted, match=why):
      load()
  assert not ran.exists()
  code, _, error = call("train", "--resume", f"--workdir={folder}")
  assert code == 2 and error.count("\n") == 1
  if way != "link out":  # which leads to the recorded file, and so to a run of another config
    assert "trust_code" in error and not ran.exists()
  assert len(ddl.load(folder).metrics) == 3  # which need no code
  if way == "inside":
    assert ddl.load(folder, trust_code=True).model and ran.exists()
    assert call("train", "--resume", f"--workdir={folder}", "--trust_code")[0] == 0


def test_a_folder_behind_a_link(run):
  folder, ran = run
  shutil.copytree(folder.parent / "code", folder / "code")
  (folder / "out.py").symlink_to(folder.parent / "code/net.py")
  link = folder.parent / "link"
  link.symlink_to(folder)
  for name in (f"{folder}/code/net.py", f"{link}/code/net.py", f"{link}/out.py"):
    address(folder, f"{name}:net")
    with pytest.raises(Untrusted, match="is inside the run folder"):
      _ = ddl.load(link).experiment
  assert not ran.exists()


def test_an_address_without_a_file(tmp_path, monkeypatch):
  allow = trusted_code.check(tmp_path, {}, False, "advice")
  for name in ("sys:net", "no.such:net"):
    with pytest.raises(Untrusted, match="has no file to check and is not trusted; advice"):
      allow(name)
  monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as at a prompt
  allow("__main__:net")


def test_what_is_trusted_stays_so(run):
  """The result of a call that has run the code, and the runs of a comparison that is trusted."""
  folder, _ = run
  settings = {"data": {"name": "least_squares"}, "model": {"name": f"{folder.parent}/code/net.py:net"}, **SMALL}
  compare = {"seeds": (0,), "target": 1.0, "algorithms": LABELS}
  compared = ddl.compare(only=["sync"], compare=compare, workdir=folder.parent / "b", **settings)
  shutil.copytree(folder.parent / "code", folder / "code")
  address(folder, f"{folder}/code/net.py:net")
  trained = ddl.train(workdir=folder, options=TRUST)
  net = folder.parent / "code/net.py"
  net.write_text(net.read_text() + "# edited\n")
  assert trained.model and compared.runs["sync"][0].experiment
  assert ddl.load(compared.folder, trust_code=True).runs["sync"][0].experiment
  with pytest.raises(Untrusted):
    _ = ddl.load(compared.folder).runs["sync"][0].experiment


def test_what_a_record_cannot_switch_on(run, call):
  """The folder is somebody else's: its record may not trust itself, nor name the folder of compiled programs."""
  folder, ran = run
  shutil.copytree(folder.parent / "code", folder / "code")
  address(folder, f"{folder}/code/net.py:net")
  record = json.loads((folder / "experiment.json").read_text())
  record["options"] |= {"trust_code": True, "allow_changed_inputs": True, "compilation_cache": str(folder / "cache")}
  (folder / "experiment.json").write_text(json.dumps(record))
  assert call("train", "--resume", f"--workdir={folder}")[0] == 2
  with pytest.raises(Untrusted):
    ddl.train(workdir=folder, options=RESUME)
  assert not ran.exists() and not (folder / "cache").exists()


RULE = """
from pathlib import Path
from ddl import Algorithm
from ddl.algorithms.collective.local_sgd import local_sgd
Path({ran!r}).touch()


def rule(inner, *, period: int = 2) -> Algorithm:
  return local_sgd(inner, period=period)
"""


def test_a_label_that_is_not_asked_for_does_not_run_code_of_the_folder(tmp_path):
  (tmp_path / "rule.py").write_text(RULE.format(ran=str(tmp_path / "ran")))
  own = LABELS | {"own": {"algorithm": {"name": f"{tmp_path}/rule.py:rule"}}}
  settings = saved_npz(tmp_path / "d.npz") | {"workdir": tmp_path / "c"}
  make = lambda labels, **how: ddl.compare(  # noqa: E731
    compare={"seeds": (0,), "target": 0.3, "algorithms": labels}, **settings, **how
  )
  folder = make(own).folder
  forget()
  (tmp_path / "ran").unlink()
  shutil.move(tmp_path / "rule.py", folder)
  for file in [folder / "comparison.json", *folder.glob("**/config.json")]:
    file.write_text(file.read_text().replace(f"{tmp_path}/rule.py", f"{folder}/rule.py"))
  with pytest.raises(Untrusted, match="is inside the run folder"):
    make(LABELS, options=RESUME)
  assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_a_label_with_a_file_of_the_folder(run, call, command):
  folder, ran = run
  settings = {"data": {"name": "least_squares"}, "model": {"name": f"{folder.parent}/code/net.py:net"}, **SMALL}
  settings |= {"compare": {"seeds": (0,), "target": 1.0, "algorithms": LABELS}}
  how = {"trials": 1, "only": ["sync"]} if command == "sweep" else {"only": ["sync"]}
  created = getattr(ddl, command)(workdir=folder.parent / "b", **how, **settings).folder
  forget()
  ran.unlink()
  shutil.copytree(folder.parent / "code", created / "code")
  for file in [created / "experiment.json", *created.glob("**/config.json")]:
    file.write_text(file.read_text().replace(f"{folder.parent}/code/net.py", f"{created}/code/net.py"))
  assert call(command, "--resume", f"--workdir={created}")[0] == 2
  with pytest.raises(Untrusted, match="inside the run folder"):
    getattr(ddl, command)(workdir=created, options=RESUME)
  single = next(created.glob("**/config.json")).parent
  (single / "experiment.json").touch()  # as if the run were of a command of its own
  with pytest.raises(Untrusted, match=f"inside the run folder {created}"):
    _ = ddl.load(single).model
  if command == "compare":
    loaded = ddl.load(created)
    assert len(loaded.table) == 1 and len(loaded.metrics) == 3
    with pytest.raises(Untrusted):
      _ = loaded.runs["sync"][0].experiment
  assert not ran.exists()
