"""User modules in the folder of a config file: imported with the config, and by address from any folder."""

import json
import pickle
import sys

import pytest
from helpers.commands import ROOT, Command, complaint

from ddl.config import base, custom, user_code
from ddl.config.base import load
from ddl.config.experiment import Experiment

MINE = """
import jax.numpy as jnp
from ddl import Model
from parts import {start}

def net(meta, *, width: int = 1):
  from later import scale  # imported when the function is called
  def init(key):
    return {{"w": jnp.full((64, 10), {start} * scale)}}, {{}}
  def loss(params, extra, batch, key):
    return jnp.mean((batch["x"].reshape(-1, 64) @ params["w"]) ** 2), extra
  return Model(init, loss, dense=True)
"""
CONFIG = """
import mine
from ddl.config import base, custom

def get_config():
  config = base()
  config.model = custom(mine.net)
  config.workers, config.batch, config.steps, config.eval_every = 2, 4, 2, 2
  config.optimizer.learning_rate = 1e-9
  return config
"""


def write(folder, start="HALF", value=0.5, scale=2.0):
  """Write a config, the module that it imports, and two modules that this one imports."""
  folder.mkdir()
  (folder / "mine.py").write_text(MINE.format(start=start))
  (folder / "parts.py").write_text(f"{start} = {value}\n")
  (folder / "later.py").write_text(f"scale = {scale}\n")
  (folder / "config.py").write_text(CONFIG)
  return folder / "config.py"


@pytest.fixture(autouse=True)
def without_user_modules(monkeypatch):
  """Remove the modules that a test imports."""
  monkeypatch.setattr(sys, "path", [*sys.path])
  before = {*sys.modules}
  yield
  for name in {*sys.modules} - before:
    if "@" in name or name.partition(".")[0] in ("mine", "parts", "later", "pack"):
      del sys.modules[name]


def initial(config):
  created = Experiment.from_config(config).make_part("model", {})
  return float(created.init(None)[0]["w"][0, 0])


@pytest.mark.slow
def test_resume_and_load_from_another_folder(tmp_path):
  file = write(tmp_path / "here")
  (tmp_path / "there").mkdir()
  done = Command("train", f"--config={file}", f"--workdir={tmp_path}/run").end()
  assert done.code == 0, done.error
  record = json.loads((tmp_path / "run/config.json").read_text())
  assert record["model"] == {"name": f"{tmp_path}/here/mine.py:net", "width": 1}
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
  reported = complaint(Command("train", "--resume", f"--workdir={tmp_path}/run").end())
  assert "existing file" in reported and "mine.py:net" in reported and "damaged" not in reported


def test_files_with_the_same_name_in_two_folders(tmp_path):
  """Files are imported by path, but a process can import only one module with the same name from them."""
  one, two = write(tmp_path / "one"), write(tmp_path / "two", "FOURTH", 0.25, scale=8.0)
  first = load(one)
  assert initial(first) == 1.0
  path = [*sys.path]
  with pytest.raises(ValueError, match=f"{tmp_path}/one/.*another process"):
    load(two)
  assert sys.path == path
  (tmp_path / "two/parts.py").rename(tmp_path / "two/quarters.py")
  (tmp_path / "two/later.py").rename(tmp_path / "two/scales.py")
  mine = (tmp_path / "two/mine.py").read_text().replace("parts", "quarters").replace("later", "scales")
  (tmp_path / "two/mine.py").write_text(mine)
  second = base()
  second.model = custom(user_code.find("model", f"{tmp_path}/two/mine.py:net"))
  assert second.model.name == f"{tmp_path}/two/mine.py:net"
  assert [initial(config) for config in (first, second, load(one))] == [1.0, 2.0, 1.0]


def test_import_and_address_give_the_same_object(tmp_path):
  file = write(tmp_path / "here")
  load(file)
  assert user_code.find("model", f"{tmp_path}/here/mine.py:net") is sys.modules["mine"].net
  assert user_code.load(file.parent / "parts.py") is sys.modules["parts"]


def test_modules_of_files_are_registered(tmp_path):
  """Dataclasses with postponed annotations, and pickle, look modules up in sys.modules."""
  lines = (
    "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass Two:\n  x: int\n"
  )
  (tmp_path / "two.py").write_text(lines)
  two = user_code.load(tmp_path / "two.py").Two(3)
  assert pickle.loads(pickle.dumps(two)) == two


def test_absolute_addresses(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert user_code.absolute("mine.py:net") == f"{tmp_path}/mine.py:net"
  assert user_code.absolute("optax:sgd") == "optax:sgd"


def test_relative_imports_in_a_package(tmp_path):
  package = tmp_path / "here/pack"
  package.mkdir(parents=True)
  (package / "__init__.py").write_text("")
  (package / "parts.py").write_text("HALF = 0.5\n")
  (package / "mine.py").write_text("from .parts import HALF\ndef half(rate, steps):\n  return HALF * rate\n")
  assert user_code.find("schedule", f"{package}/mine.py:half")(1.0, 1) == 0.5
  assert custom(sys.modules["pack.mine"].half)["name"] == f"{package}/mine.py:half"


def test_failed_import_leaves_no_module(tmp_path):
  (tmp_path / "broken.py").write_text("import no_such_module_at_all\n")
  path, modules = [*sys.path], {*sys.modules}
  with pytest.raises(ValueError, match="no_such_module_at_all"):
    user_code.find("schedule", f"{tmp_path}/broken.py:half")
  assert sys.path == path and {*sys.modules} == modules


def test_file_named_like_a_library(tmp_path):
  import optax

  (tmp_path / "optax.py").write_text("def half(rate, steps):\n  return 0.5 * rate\n")
  assert user_code.find("schedule", f"{tmp_path}/optax.py:half")(1.0, 1) == 0.5
  assert sys.modules["optax"] is optax


def test_edited_config_is_reloaded(tmp_path):
  (file := tmp_path / "edited.py").write_text(EDITED.format(0.5))
  assert initial_rate(load(file)) == 0.5
  file.write_text(EDITED.format(0.125))
  assert initial_rate(load(file)) == 0.125


EDITED = """
from ddl.config import base, custom
def fixed(rate, steps):
  return {}
def get_config():
  config = base()
  config.schedule = custom(fixed)
  return config
"""


def initial_rate(config):
  return Experiment.from_config(config).make_part("schedule", 1.0, 1)
