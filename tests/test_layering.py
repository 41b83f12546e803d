"""Layers: each package of ddl imports only packages below it, and none imports `experiments`."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = {"api", "elementwise", "errors", "group", "group_recorder", "precision", "ranges", "schedule", "sharding"}
LEAVES = {"errors", "files", "memory", "names", "ranges"}
ENGINE = KERNEL | {"contract", "events", "memory", "hosts", "engine", "asynchronous", "elastic"}
PARTS = {"algorithms", "data", "models", "perf"}
CONFIG = ENGINE | LEAVES | PARTS | {"config"}
MAY_IMPORT = {  # package of ddl -> packages that it may import, in the order of the layers
  "errors": set(),
  "files": set(),
  "memory": set(),
  "ranges": {"errors"},
  "names": set(),
  "sharding": {"errors"},
  "api": {"sharding"},
  "precision": {"api"},
  "group": {"api"},
  "group_recorder": {"api", "errors", "group"},
  "schedule": {"api", "errors", "ranges"},
  "contract": {"api", "ranges", "schedule"},
  "as_optax": {"api", "contract", "errors", "group", "group_recorder", "schedule"},
  "elementwise": {"api", "precision"},
  "algorithms": {"api", "elementwise", "files", "group", "precision", "ranges"},
  "models": {"api", "errors", "memory", "ranges", "precision", "sharding"},
  "data": {"api", "errors", "files", "memory", "ranges"},
  "events": LEAVES,
  "perf": LEAVES | {"events"},
  "hosts": {"errors", "memory"},
  "engine": (KERNEL | {"contract", "hosts", "memory", "names"}) - {"ranges"},
  "asynchronous": KERNEL | {"contract", "engine", "events", "hosts", "memory"},
  "elastic": KERNEL | {"asynchronous", "engine", "events", "hosts", "names"},
  "config": CONFIG - {"config", "hosts", "engine", "asynchronous", "elastic", "perf"},
  "run": CONFIG,
  "trackers": LEAVES | {"hosts", "run"},
  "costs": CONFIG | {"run"},
  "report": CONFIG | {"run", "costs"},
  "comparison": CONFIG | {"run", "costs", "report"},
  "library": CONFIG | {"run", "costs", "report", "comparison"},
  "__init__": set(),  # all names are imported on first use
}


def packages(folder):
  """Return {package or top-level module: its Python files} for a folder of the repository."""
  result = {}
  for path in sorted((ROOT / folder).rglob("*.py")):
    result.setdefault(path.relative_to(ROOT / folder).parts[0].removesuffix(".py"), []).append(path)
  return result


def imports(files):
  """Yield (file, full name) of all imports, also inside of functions; refuse relative imports."""
  for path in files:
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        yield from ((path, alias.name) for alias in node.names)
      elif isinstance(node, ast.ImportFrom):
        assert not node.level, f"{path}:{node.lineno}: relative import"
        yield from ((path, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("package, files", packages("ddl").items(), ids=packages("ddl"))
def test_a_package_imports_only_packages_below_it(package, files):
  assert package in MAY_IMPORT, f"ddl/{package}: add what it may import to tests/test_layering.py"
  for path, name in imports(files):
    top, *rest = name.split(".")
    assert top not in ("experiments", "configs", "run", "tests"), f"{path} imports {name}"
    if package == "perf":  # ddl.api imports optax, so perf cannot import it either
      assert top not in ("jax", "jaxlib", "flax", "optax", "orbax"), f"{path} imports {name}"
    if package == "costs" and path.stem not in ("activations", "step_cost"):
      assert top not in ("jax", "jaxlib", "flax"), f"{path} imports {name}"
    if top == "ddl" and rest != ["__version__"]:
      assert rest and rest[0] in MAY_IMPORT[package] | {package}, f"{path} imports {name}"


@pytest.mark.parametrize("package, files", packages("experiments").items(), ids=packages("experiments"))
def test_a_study_imports_no_other(package, files):
  for path, name in imports(files):
    top, *rest = name.split(".")
    if top == "experiments" and package != "commands":
      assert rest and rest[0] == package, f"{path} imports {name}"


def test_layers_have_one_direction():
  order = [*MAY_IMPORT]
  for package, below in MAY_IMPORT.items():
    assert all(order.index(other) < order.index(package) for other in below), package


@pytest.mark.parametrize("files", packages("tests").values(), ids=packages("tests"))
def test_tests_import_only_helpers_and_public_names(files):
  for path, name in imports(files):
    parts = name.split(".")
    assert not any(part.startswith("test_") for part in parts), f"{path} imports another test: {name}"
    if parts[0] in ("ddl", "experiments"):
      private = [part for part in parts if part.startswith("_") and not part.startswith("__")]
      assert not private, f"{path} imports a private name: {name}"
