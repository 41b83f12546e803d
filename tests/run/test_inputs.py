"""Resumes with changed data or code, and user-defined code inside a run folder."""

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
  """Write 90 examples, the first `change` with changed labels; return settings that read them."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(90, 4)).astype(np.float32), rng.integers(0, 3, 90)
  y[:change] = (y[:change] + 1) % 3
  np.savez(file, x=x, y=y)
  return {"data": {"name": "npz", "path": str(file)}, "model": {"hidden": (4,)}, **SMALL}


# ---- fingerprints


def fingerprint(data, name, **settings):
  return inputs.fingerprints([default_experiment(data={"name": name, **settings})], data)


def test_arrays_determine_the_fingerprint_of_an_npz_file(tmp_path):
  saved_npz(tmp_path / "a.npz")
  saved_npz(tmp_path / "b.npz")
  os.utime(tmp_path / "b.npz", (0, 0))
  saved_npz(tmp_path / "c.npz", change=1)
  a, b, c = (fingerprint(npz(path=f"{tmp_path}/{x}.npz"), "npz", path=f"{tmp_path}/{x}.npz") for x in "abc")
  assert a == b and {*a} == {"training examples", "test examples"}
  assert [a[split] == c[split] for split in sorted(a)].count(False) == 1  # the changed label is in one split


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "sampled"])
def test_token_files_determine_their_fingerprint(tmp_path, monkeypatch, whole):
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
  (tmp_path / "b/notes.txt").write_text("ignored")
  ids[500:505] = 7
  ids.tofile(tmp_path / "b/train.bin")
  changed = fingerprint(load("b"), "tokens", path=f"{tmp_path}/b", length=8, vocabulary=50)
  assert changed["data files"] != same[0]["data files"]


def test_images_determine_the_fingerprint_of_a_folder(tmp_path):
  for kind, grey in (("cat", 10), ("dog", 200)):
    for number in range(6):
      (tmp_path / "p" / kind).mkdir(parents=True, exist_ok=True)
      Image.new("RGB", (4, 4), (grey + number, 0, 0)).save(tmp_path / "p" / kind / f"{number}.png")
  path = str(tmp_path / "p")
  current = lambda: fingerprint(image_folder(path=path), "image_folder", path=path)  # noqa: E731
  first = current()
  (tmp_path / "p/.hidden").mkdir()
  (tmp_path / "p/.hidden/x.png").write_bytes(b"x")
  (tmp_path / "p/cat/notes.txt").write_text("ignored")
  assert current() == first
  cat, dog = tmp_path / "p/cat/3.png", tmp_path / "p/dog/3.png"
  cat_bytes, dog_bytes = cat.read_bytes(), dog.read_bytes()
  cat.write_bytes(dog_bytes)
  dog.write_bytes(cat_bytes)
  assert current()["data files"] != first["data files"]


def test_text_traces_and_graphs_are_inputs(tmp_path):
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
  before = inputs.fingerprints([experiment], data)
  np.savetxt(tmp_path / "steps.csv", np.full((300, 8), 2), delimiter=",")
  after = inputs.fingerprints([experiment], data)
  assert {key for key in before if before[key] != after[key]} == {f"{tmp_path}/steps.csv"}
  assert f"{tmp_path}/w.npy" in after and inputs.fingerprints_of_label(after, experiment) == after
  assert not [key for key in inputs.fingerprints_of_label(after, default_experiment()) if key.startswith("/")]


def fingerprint_of_arrays(x, y, validation=None):
  source = ddl.data.source.in_memory(x, y, y)
  validation = validation if validation is None else ddl.data.source.in_memory(validation, y, y)
  return inputs.fingerprints([default_experiment()], ddl.Data(source, source, {}, validation))


def test_the_fingerprint_of_large_arrays_samples_examples_but_not_labels(monkeypatch):
  monkeypatch.setattr(inputs, "WHOLE", 64)
  monkeypatch.setattr(inputs, "SAMPLE", 64)
  x, y = np.zeros((2000, 2), np.float32), np.zeros(2000, np.int32)
  changed_label, changed_end = y.copy(), x.copy()
  changed_label[1] = 1
  changed_end[-100:] = 2
  assert fingerprint_of_arrays(x, y) == fingerprint_of_arrays(x.copy(), y)
  assert fingerprint_of_arrays(x, y) != fingerprint_of_arrays(x, changed_label)
  assert fingerprint_of_arrays(x, y) != fingerprint_of_arrays(changed_end, y)


def test_the_type_and_the_validation_split_are_part_of_the_fingerprint():
  x, y = np.ones((2000, 2), np.float32), np.zeros(2000, np.int32)
  assert fingerprint_of_arrays(x, y) != fingerprint_of_arrays(x.view(np.int32), y)
  before, after = fingerprint_of_arrays(x, y, x), fingerprint_of_arrays(x, y, 2 * x)
  assert {name for name in before if before[name] != after[name]} == {"validation examples"}


def test_the_fingerprint_of_a_stream_is_of_its_first_examples():
  def training_examples(first):
    rows = [{"x": np.full(2, k, np.float32), "y": np.int32(0)} for k in (first, 1, 2, 3)]
    make = lambda worker, workers, seed: grain.MapDataset.source(rows).repeat().to_iter_dataset(FEW)  # noqa: E731
    source = from_grain_stream(make, size=4)
    data = ddl.Data(source._replace(take=lambda k: {}), source, {})
    return inputs.fingerprints([default_experiment()], data)["training examples"]

  assert training_examples(0) == training_examples(0) != training_examples(7)


def test_initial_parameters_and_tuned_json_are_inputs(tmp_path):
  (tmp_path / "a").mkdir()
  for name in ("a/model.msgpack", "tuned.json"):
    (tmp_path / name).write_text("one")
  source = ddl.data.source.in_memory(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
  current = lambda: inputs.fingerprints(  # noqa: E731
    [default_experiment()], ddl.Data(source, source, {}), str(tmp_path / "a"), str(tmp_path / "tuned.json")
  )
  first = current()
  (tmp_path / "a/model.msgpack").write_text("two")
  second = current()
  (tmp_path / "tuned.json").write_text("two")
  third = current()
  assert [key for key in first if first[key] != second[key]] == ["init_from"]
  assert [key for key in first if second[key] != third[key]] == ["tuned"]


def test_run_folders_and_link_cycles_inside_the_data_folder_are_ignored(tmp_path):
  for part in ("train", "val"):
    (np.arange(640, dtype=np.uint16) % 50).tofile(tmp_path / f"{part}.bin")
  data = tokens(path=str(tmp_path), length=8, vocabulary=50)
  current = lambda: fingerprint(data, "tokens", path=str(tmp_path), length=8, vocabulary=50)["data files"]  # noqa: E731
  first = current()
  (tmp_path / "cycle").symlink_to(tmp_path)
  assert current() == first
  (tmp_path / "runs").mkdir()
  (tmp_path / "runs/train.bin").write_bytes(b"1234")
  assert current() != first
  (tmp_path / "runs/about.json").touch()
  assert current() == first


def test_the_boundary_between_files_changes_the_fingerprint(tmp_path):
  ids, fingerprints = np.arange(1280, dtype=np.uint16) % 50, set()
  for size in (640, 600):
    ids[:size].tofile(tmp_path / "train.bin")
    ids[size:].tofile(tmp_path / "val.bin")
    data = tokens(path=str(tmp_path), length=8, vocabulary=50)
    fingerprints.add(fingerprint(data, "tokens", path=str(tmp_path), length=8, vocabulary=50)["data files"])
  assert len(fingerprints) == 2


def test_files_of_the_tensorflow_data_set_determine_its_fingerprint(tmp_path):
  for name in ("mnist", "cifar10"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "part.tfrecord").write_text("one")
  source = ddl.data.source.in_memory(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
  data = ddl.Data(source, source, {})
  current = lambda: fingerprint(data, "tfds", dataset="mnist", data_dir=str(tmp_path))["data files"]  # noqa: E731
  first = current()
  (tmp_path / "cifar10/part.tfrecord").write_text("two")
  assert current() == first
  (tmp_path / "mnist/part.tfrecord").write_text("two")
  assert current() != first


def test_processes_with_different_inputs_are_refused():
  source = ddl.data.source.in_memory(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
  data = ddl.Data(source, source, {"description": "zeros"})
  first, second = (processes.text({}, ddl.RunOptions(), data, {"data files": digest}) for digest in "ab")
  assert "inputs" in processes.difference(first, second, 1)


def test_the_imported_local_files_of_an_address_are_listed(tmp_path):
  package = tmp_path / "nets" / "parts"
  package.mkdir(parents=True)
  for name in ("nets/__init__.py", "nets/parts/__init__.py", "nets/parts/blocks.py", "unrelated.py"):
    (tmp_path / name).write_text("")
  (package / "net.py").write_text("import os, jax\nfrom . import blocks\nfrom nets import near\nimport nearby\n")
  (tmp_path / "nets/near.py").write_text("import near2\n")
  (tmp_path / "near2.py").write_text("")
  (package / "nearby.py").write_text("import net\n")  # a cycle
  names = {str(file.relative_to(tmp_path)) for file in trusted_code.files(f"{package}/net.py:net")}
  assert names == {
    "nets/__init__.py", "nets/parts/__init__.py", "nets/parts/blocks.py", "nets/parts/net.py", "nets/near.py",
    "near2.py", "nets/parts/nearby.py",
  }  # fmt: skip
  assert trusted_code.files("ddl.models:MODELS") == [] and trusted_code.files("no.such:net") == []
  assert [file.name for file in trusted_code.files("textwrap:fill")] == ["textwrap.py"]


# ---- resumes


@pytest.mark.slow
def test_a_resumed_run_with_changed_data_is_refused_unless_allowed(tmp_path, capsys):
  settings = saved_npz(tmp_path / "d.npz")
  run = ddl.train(workdir=tmp_path / "a", **settings)

  def resume(options=RESUME):
    (run.folder / "result.json").unlink()
    return ddl.train(workdir=tmp_path / "a", options=options)

  saved_npz(tmp_path / "d.npz")  # writes the same examples again
  resume()
  saved_npz(tmp_path / "d.npz", change=90)
  with pytest.raises(ValueError, match="have changed: training examples, test examples") as error:
    resume()
  assert "\n" not in str(error.value) and "allow_changed_inputs" in str(error.value)
  (run.folder / "result.json").touch()
  run = resume(ALLOW)
  assert run_dir.input_changes(run.folder) == [{"changed": ["training examples", "test examples"], "step": 8}]
  assert "Changed contents since step 8: training examples, test examples." in repr(ddl.load(run.folder))
  (run.folder / "inputs.json").unlink()
  capsys.readouterr()
  resume()  # the changed data is recorded by now
  assert "inputs.json" in capsys.readouterr().out
  (run.folder / "inputs.json").write_text("{")
  with pytest.raises(ValueError, match=r"inputs\.json is damaged"):
    resume()


@pytest.mark.parametrize("content", ['{"inputs": []}', '{"inputs": {}, "changes": [3]}', "[]"])
def test_a_damaged_record_of_inputs_is_refused(tmp_path, content):
  (tmp_path / "inputs.json").write_text(content)
  with pytest.raises(ValueError, match=rf"^{tmp_path}/inputs\.json is damaged"):
    run_dir.recorded_inputs(tmp_path)


def test_inputs_of_a_run_that_was_killed_at_its_start_are_removed(tmp_path):
  run_dir.record(tmp_path, {}, None, {"training examples": "a"})
  assert run_dir.recorded_inputs(tmp_path) and not run_dir.RunFolder(tmp_path).has_begun()
  assert run_dir.recorded_inputs(tmp_path) == {}


def test_all_changes_of_inputs_are_recorded(tmp_path):
  for step, digest in enumerate("abbc"):
    run_dir.record_inputs(tmp_path, {"data files": digest}, {"step": step})
  assert run_dir.input_changes(tmp_path) == [{"changed": ["data files"], "step": step} for step in (1, 3)]
  assert run_dir.recorded_inputs(tmp_path) == {"data files": "c"}


@pytest.mark.parametrize("option", ["allow_changed_inputs", "trust_code"])
def test_options_of_a_resume_are_refused_without_it(option):
  with pytest.raises(ValueError, match=f"{option} must be False unless resume is set"):
    ddl.RunOptions(**{option: True})


def test_the_record_of_a_folder_cannot_allow_changed_data(tmp_path, call):
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


@pytest.mark.slow
def test_a_resumed_comparison_with_changed_data_is_refused_unless_allowed(tmp_path):
  settings = saved_npz(tmp_path / "d.npz")
  compare = {"seeds": (0,), "target": 0.3, "algorithms": {"sync": LABELS["sync"]}}
  ddl.compare(compare=compare, workdir=tmp_path / "c", **settings)
  for folder in ("c", "c/sync/seed-0"):
    assert {*run_dir.recorded_inputs(tmp_path / folder)} == {"training examples", "test examples"}
  saved_npz(tmp_path / "d.npz", change=90)
  more = compare | {"seeds": (0, 1)}
  with pytest.raises(ValueError, match="have changed: training examples"):
    ddl.compare(compare=more, workdir=tmp_path / "c", options=RESUME, **settings)
  assert [path.name for path in tmp_path.glob("c/*/seed-*")] == ["seed-0"]
  compared = ddl.compare(compare=more, workdir=tmp_path / "c", options=ALLOW, **settings)
  [change] = compared.info["changed_inputs"]
  assert change["runs"] == {"sync/seed-0": None} and "test examples" in change["changed"]
  text = "Changed contents since earlier runs: training examples, test examples. Earlier runs: sync/seed-0."
  assert text in compared.report.read_text() and text in " ".join(repr(compared).split())
  assert ddl.compare(workdir=tmp_path / "c", options=RESUME).info["changed_inputs"] == [change]


@pytest.mark.slow
def test_a_resumed_sweep_with_changed_data_is_refused_unless_allowed(tmp_path):
  settings = saved_npz(tmp_path / "d.npz") | {"compare": {"algorithms": LABELS}}
  ddl.sweep(only=["sync"], trials=1, workdir=tmp_path / "s", **settings)
  for folder in ("s", "s/sync/trial-0/seed-0"):
    assert "validation examples" in run_dir.recorded_inputs(tmp_path / folder)
  saved_npz(tmp_path / "d.npz", change=90)
  with pytest.raises(ValueError, match="have changed: training examples"):
    ddl.sweep(only=["sync"], trials=2, workdir=tmp_path / "s", options=RESUME, **settings)
  swept = ddl.sweep(only=["sync"], trials=2, workdir=tmp_path / "s", options=ALLOW, **settings)
  assert "Earlier runs: sync/trial-0/seed-0." in repr(swept) and len(swept.trials) == 2


# ---- code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A folder `work` with a run of a user-defined model and its code, and a copy of the folder."""
  path = tmp_path_factory.mktemp("code")
  (path / "work/code").mkdir(parents=True)
  (path / "work/code/net.py").write_text(NET.format(ran=f"{path}/work/ran"))
  (path / "work/code/layers.py").write_text(LAYERS)
  settings = {"model": {"name": f"{path}/work/code/net.py:net"}, "data": {"name": "least_squares"}, **SMALL}
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    folder = ddl.train(workdir=path / "work/a", **settings).folder
  (folder / "result.json").unlink()
  (path / "work/ran").unlink()
  shutil.copytree(path / "work", path / "copy")
  return path


@pytest.fixture
def run(trained):
  """The folder of the run in its first state, and the file that an import of its code creates."""
  shutil.rmtree(trained / "work")
  shutil.copytree(trained / "copy", trained / "work")
  forget()
  yield trained / "work/a", trained / "work/ran"
  forget()


def forget():
  """Remove the user-defined modules from sys.modules, as in a new process."""
  for name in [*sys.modules]:
    if name.partition("@")[0] in ("net", "layers", "rule"):
      del sys.modules[name]


def address(folder, name):
  """Change the address of the model in a folder's records."""
  for file in ("config.json", "experiment.json"):
    record = json.loads((folder / file).read_text())
    record.get("config", record)["model"]["name"] = name
    (folder / file).write_text(json.dumps(record))


def test_only_the_model_of_a_run_imports_its_code(run):
  folder, ran = run
  loaded = ddl.load(folder)
  assert len(loaded.metrics) == 3 and loaded.config["model"]["name"].endswith("net.py:net") and "step 8" in repr(loaded)
  assert not ran.exists()
  assert loaded.params["w"].shape[1] == 1 and ran.exists()


@pytest.mark.parametrize("changed", ["layers.py", "net.py"])
@pytest.mark.sampled(2)
def test_changed_code_is_refused_unless_trusted(run, call, changed):
  folder, ran = run
  file = folder.parent / "code" / changed
  file.write_text(file.read_text() + "# edited\n")
  for load in (lambda: ddl.load(folder).model, lambda: ddl.train(workdir=folder, options=RESUME)):
    with pytest.raises(ValueError, match=f"{file} has changed since {folder} was written") as error:
      load()
    assert "\n" not in str(error.value) and "trust_code" in str(error.value)
  code, _, error = call("train", "--resume", f"--workdir={folder}")
  assert code == 2 and str(file) in error and "allow_changed_inputs" in error and error.count("\n") == 1
  with pytest.raises(ValueError, match=f"have changed: {file}; "):  # the code is trusted, but is an input of the run
    ddl.train(workdir=folder, options=TRUST)
  forget()
  ran.unlink()
  assert ddl.load(folder, trust_code=True).model and ran.exists()
  assert call("train", "--resume", f"--workdir={folder}", "--allow_changed_inputs")[0] == 0
  assert run_dir.input_changes(folder) == [{"changed": [str(file)], "step": 8}]


def test_processes_can_allow_different_inputs(run, monkeypatch):
  checked = []

  def check(config, options, *_):
    checked.append(options)
    raise InterruptedError

  monkeypatch.setattr(processes, "check", check)
  for options in (ALLOW, TRUST, RESUME):
    with pytest.raises(InterruptedError):
      ddl.train(workdir=run[0], options=options)
  assert len(checked) == 3 and len({processes.text({}, options) for options in checked}) == 1


@pytest.mark.parametrize("case", ["inside", "with a hash", "..", "link in", "link out", "package", "no hash"])
def test_code_inside_the_run_folder_is_refused_unless_trusted(run, call, monkeypatch, case):
  folder, ran = run
  code = folder.parent / "code"
  shutil.copytree(code, folder / "code")
  names = {
    "link out": f"{folder}/out.py", "link in": f"{folder.parent}/in.py", "no hash": f"{folder.parent}/new.py",
    "..": f"{folder.parent}/code/../a/code/net.py", "package": "code.net",
  }  # fmt: skip
  file = names.get(case, f"{folder}/code/net.py")
  if case == "link out":
    (folder / "out.py").symlink_to(code / "net.py")
  if case == "link in":
    (folder.parent / "in.py").symlink_to(folder / "code/net.py")
  if case == "no hash":
    shutil.copy(code / "net.py", folder.parent / "new.py")
  if case == "package":
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "code", raising=False)
    (folder / "code/__init__.py").touch()
  if case == "with a hash":
    record = json.loads((folder / "inputs.json").read_text())
    record["inputs"] |= {str(path): trusted_code.digest(path) for path in (folder / "code").glob("*.py")}
    (folder / "inputs.json").write_text(json.dumps(record))
  address(folder, f"{file}:net")
  reason = "new.py is not among the code files recorded" if case == "no hash" else "is inside the run folder"
  for load in (lambda: ddl.load(folder).model, lambda: ddl.train(workdir=folder, options=ALLOW)):
    with pytest.raises(Untrusted, match=reason) as error:
      load()
    assert "trust_code" in str(error.value) and "allow_changed_inputs" not in str(error.value)
  assert not ran.exists()
  assert len(ddl.load(folder).metrics) == 3  # needs no code
  if case == "inside":
    code, _, error = call("train", "--resume", f"--workdir={folder}")
    assert code == 2 and error.count("\n") == 1 and "trust_code" in error and not ran.exists()
    assert ddl.load(folder, trust_code=True).model and ran.exists()
    assert call("train", "--resume", f"--workdir={folder}", "--trust_code")[0] == 0


def test_code_inside_a_linked_run_folder_is_refused(run):
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


def test_modules_without_a_file_are_refused_except_main(tmp_path, monkeypatch):
  allow = trusted_code.check(tmp_path, {}, False, "advice")
  for name in ("sys:net", "no.such:net"):
    with pytest.raises(Untrusted, match="has no file to check and is not trusted; advice"):
      allow(name)
  monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as at a prompt
  allow("__main__:net")


def test_results_stay_trusted_after_their_code_changes(run):
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


def test_the_record_of_a_folder_cannot_enable_trust(run, call):
  """The record of another user's folder must not enable its own code, nor a compilation cache inside the folder."""
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


@pytest.mark.slow
def test_labels_that_are_only_read_import_no_code_of_the_folder(tmp_path):
  (tmp_path / "rule.py").write_text(RULE.format(ran=str(tmp_path / "ran")))
  custom = {"sync": LABELS["sync"], "custom": {"algorithm": {"name": f"{tmp_path}/rule.py:rule"}}}
  settings = saved_npz(tmp_path / "d.npz") | {"workdir": tmp_path / "c"}
  make = lambda labels, **how: ddl.compare(  # noqa: E731
    compare={"seeds": (0,), "target": 0.3, "algorithms": labels}, **settings, **how
  )
  folder = make(custom).folder
  forget()
  (tmp_path / "ran").unlink()
  shutil.move(tmp_path / "rule.py", folder)
  for file in [folder / "comparison.json", *folder.glob("**/config.json")]:
    file.write_text(file.read_text().replace(f"{tmp_path}/rule.py", f"{folder}/rule.py"))
  with pytest.raises(Untrusted, match="is inside the run folder"):
    make({"sync": LABELS["sync"]}, options=RESUME)
  assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_a_resume_imports_no_model_inside_the_folder(run, call, command):
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
  (single / "experiment.json").touch()  # as if `train` had created the folder
  with pytest.raises(Untrusted, match=f"inside the run folder {created}"):
    _ = ddl.load(single).model
  if command == "compare":
    loaded = ddl.load(created)
    assert len(loaded.table) == 1 and len(loaded.metrics) == 3
    with pytest.raises(Untrusted):
      _ = loaded.runs["sync"][0].experiment
  assert not ran.exists()
