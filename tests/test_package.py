"""The package ddl: its public names, environment and installation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.pages import blocks

import ddl

ROOT = Path(__file__).parents[1]


def test_each_algorithm_is_a_public_factory():
  for name, spec in (ddl.COLLECTIVE | ddl.SERVER | ddl.WRAPPERS).items():
    assert name in ddl.__all__ and getattr(ddl, name) is spec.factory


def test_a_module_does_not_hide_the_function_of_its_name():
  code = "import ddl.as_optax, ddl, optax; ddl.as_optax(ddl.sync_sgd(optax.sgd(0.1)), 'w').update"
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_an_unknown_name_is_an_attribute_error():
  with pytest.raises(AttributeError, match="Trainr"):
    _ = ddl.Trainr


def test_the_cost_model_does_without_jax():
  code = "import sys, ddl, ddl.perf.plan; assert 'jax' not in sys.modules; ddl.Group, sys.modules['jax']"
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_public_names_are_listed_and_exist():
  assert dir(ddl) == sorted(ddl.__all__)
  assert all(getattr(ddl, name) is not None for name in ddl.__all__)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_installs_the_package(tmp_path, target):
  make = ["make", "--dry-run", f"VENV={tmp_path}/venv", target]
  plan = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
  installs = [line.rpartition("constraints.txt ")[2] for line in plan if "pip install" in line]
  assert installs == [f"-r requirements{'-dev' if target == 'test' else ''}.txt", "--no-deps -e ."]


@pytest.mark.slow
def test_the_installed_package_works_in_another_folder(tmp_path):
  """The installation includes the templates of report pages."""
  pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", ROOT]
  subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
  code = (
    "import ddl, ddl.report.page as page; page.template('report.html'), page.template('scale.html'); "
    "print(ddl.__file__, len(ddl.COLLECTIVE))"
  )
  result = subprocess.run(
    [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path / "site")}, check=True,
    capture_output=True, text=True,
  ).stdout  # fmt: skip
  assert result.split() == [str(tmp_path / "site" / "ddl" / "__init__.py"), str(len(ddl.COLLECTIVE))]
  algorithm, _, loop, *_ = blocks(ROOT / "docs" / "howto" / "custom_algorithm.md", "python")
  (tmp_path / "example.py").write_text(algorithm.text + loop.text)
  printed = subprocess.run(
    [sys.executable, "example.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path / "site")}, check=True,
    capture_output=True, text=True,
  ).stdout  # fmt: skip
  assert printed == "[4.5 5.5 6.5]\n"
