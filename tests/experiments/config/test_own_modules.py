"""Modules of the user's own beside a config file: found while it is loaded, and again from anywhere."""

import json
import sys

import pytest
from helpers.commands import ROOT, Command, complaint

from ddl.config import config_file, user_code
from ddl.config.experiment import Experiment

MINE = """
import jax.numpy as jnp
from ddl import Model
from parts import {start}

def net(meta, *, width: int = 1):
  from later import scale  # when it is called
  def init(key):
    return {{"w": jnp.full((64, 10), {start} * scale)}}, {{}}
  def loss(params, extra, batch, key):
    return jnp.mean((batch["x"].reshape(-1, 64) @ params["w"]) ** 2), extra
  return Model(init, loss, dense=True)
"""
CONFIG = """
import mine
from ddl.config import base, own

def get_config():
  config = base()
  config.model = own(mine.net)
  config.workers, config.batch, config.steps, config.eval_every = 2, 4, 2, 2
  config.optimizer.learning_rate = 1e-9
  return config
"""


def write(folder, start="HALF", value=0.5, scale=2.0):
  """A config, the module that it imports, and two that this one imports."""
  folder.mkdir()
  (folder / "mine.py").write_text(MINE.format(start=start))
  (folder / "parts.py").write_text(f"{start} = {value}\n")
  (folder / "later.py").write_text(f"scale = {scale}\n")
  (folder / "config.py").write_text(CONFIG)
  return folder / "config.py"


@pytest.fixture(autouse=True)
def same_modules(monkeypatch):
  """A test begins and ends without what others imported."""
  monkeypatch.setattr(sys, "path", [*sys.path])
  for kept in ("_FILES", "_ASIDE"):
    monkeypatch.setattr(user_code, kept, {})
  forget()
  yield
  forget()


def forget():
  for name in [*sys.modules]:
    if name.partition(".")[0] in ("mine", "parts", "later", "pack"):
      del sys.modules[name]


def initial(config):
  made = Experiment.from_config(config).make_part("model", {})
  return float(made.init(None)[0]["w"][0, 0])


@pytest.mark.slow
def test_a_run_is_gone_on_with_and_loaded_from_elsewhere(tmp_path):
  file = write(tmp_path / "here")
  (tmp_path / "there").mkdir()
  done = Command("train", f"--config={file}", f"--workdir={tmp_path}/run").end()
  assert done.code == 0, done.error
  found = json.loads((tmp_path / "run/config.json").read_text())
  assert found["model"] == {"name": f"{tmp_path}/here/mine.py:net", "width": 1}
  (tmp_path / "run/result.json").unlink()
  again = Command("train", "--resume", f"--workdir={tmp_path}/run", cwd=tmp_path / "there").end()
  assert again.code == 0 and "resuming from step 2" in again.out, again.error
  load = "import sys, ddl; print(ddl.load(sys.argv[1]).params['w'].shape)"
  (tmp_path / "there/load.py").write_text(load)
  done = Command(
    f"{tmp_path}/run", file=str(tmp_path / "there/load.py"), cwd=tmp_path / "there", PYTHONPATH=str(ROOT)
  ).end()
  assert (done.code, done.out) == (0, "(64, 10)\n"), done.error
  (tmp_path / "here/mine.py").unlink()
  told = complaint(Command("train", "--resume", f"--workdir={tmp_path}/run").end())
  assert "net" in told and "missing" in told and "mine.py" in told and "damaged" not in told


def test_modules_of_one_name_in_two_folders(tmp_path):
  """Each config finds its own, whatever was loaded before, and so do the functions that import when they are called."""
  one, two = write(tmp_path / "one"), write(tmp_path / "two", "FOURTH", 0.25, scale=8.0)
  first, second = config_file.load(one), config_file.load(two)
  assert [initial(each) for each in (first, second, config_file.load(one))] == [1.0, 2.0, 1.0]
  assert second.model.name == f"{tmp_path}/two/mine.py:net"


def test_an_import_and_an_address_give_one_object(tmp_path):
  file = write(tmp_path / "here")
  config_file.load(file)
  module = sys.modules["mine"]
  assert user_code.found("model", f"{tmp_path}/here/mine.py:net") is module.net
  assert user_code.module_of(file.parent / "parts.py") is sys.modules["parts"]
  other = write(tmp_path / "other", "FOURTH", 0.25)
  by_address = user_code.module_of(other.parent / "mine.py")  # first by its address, then by an import
  assert by_address is not module and sys.modules["mine"] is module
  config_file.load(other)
  assert user_code.module_of(other.parent / "config.py").mine is by_address


def test_a_module_that_is_importable_is_recorded_by_its_file(tmp_path, monkeypatch):
  write(tmp_path / "here")
  monkeypatch.syspath_prepend(tmp_path / "here")
  assert user_code.absolute("mine:net") == f"{tmp_path}/here/mine.py:net"
  assert user_code.absolute("optax:sgd") == "optax:sgd" and user_code.absolute("mine.nothing:x") == "mine.nothing:x"


def test_a_module_of_a_package_keeps_its_relative_imports(tmp_path):
  package = tmp_path / "here/pack"
  package.mkdir(parents=True)
  (package / "__init__.py").write_text("")
  (package / "parts.py").write_text("HALF = 0.5\n")
  (package / "mine.py").write_text("from .parts import HALF\ndef half(rate, steps):\n  return HALF * rate\n")
  assert user_code.found("schedule", f"{package}/mine.py:half")(1.0, 1) == 0.5
  assert user_code.own(sys.modules["pack.mine"].half)["name"] == f"{package}/mine.py:half"


def test_a_package_without_init_is_found_from_a_file_in_it(tmp_path):
  package = tmp_path / "here/pack"
  package.mkdir(parents=True)
  (package / "parts.py").write_text("HALF = 0.5\n")
  (package / "mine.py").write_text("from pack.parts import HALF\ndef half(rate, steps):\n  return HALF * rate\n")
  found = user_code.found("schedule", f"{package}/mine.py:half")
  assert found(1.0, 1) == 0.5 and found is sys.modules["pack.mine"].half
  (package / "broken.py").write_text("import no_such_module_at_all\n")
  with pytest.raises(ValueError, match="no_such_module_at_all"):
    user_code.found("schedule", f"{package}/broken.py:half")


def test_a_file_named_like_a_library_hides_it_from_nobody(tmp_path):
  import optax

  (tmp_path / "optax.py").write_text("def half(rate, steps):\n  return 0.5 * rate\n")
  assert user_code.found("schedule", f"{tmp_path}/optax.py:half")(1.0, 1) == 0.5
  assert sys.modules["optax"] is optax


def test_an_edited_config_is_run_anew(tmp_path):
  (file := tmp_path / "edited.py").write_text(EDITED.format(0.5))
  assert initial_rate(config_file.load(file)) == 0.5
  file.write_text(EDITED.format(0.125))
  assert initial_rate(config_file.load(file)) == 0.125


EDITED = """
from ddl.config import base, own
def fixed(rate, steps):
  return {}
def get_config():
  config = base()
  config.schedule = own(fixed)
  return config
"""


def initial_rate(config):
  return Experiment.from_config(config).make_part("schedule", 1.0, 1)
