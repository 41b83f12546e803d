"""Who may import whom: each part of ddl imports parts below it only, no part imports `experiments`."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = {"api", "elementwise", "errors", "group", "group_recorder", "precision", "ranges", "schedule", "sharding"}
LEAVES = {"errors", "files", "memory", "names", "ranges"}
ENGINE = KERNEL | {"contract", "events", "memory", "hosts", "engine", "asynchronous", "elastic"}
PARTS = {"algorithms", "data", "models", "perf"}
CONFIG = ENGINE | LEAVES | PARTS | {"config"}
MAY_IMPORT = {  # part of ddl: the other parts that it may import, in the order of the layers
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
  "as_optax": {"api", "contract", "group", "group_recorder", "schedule"},
  "elementwise": {"api", "precision"},
  "algorithms": {"api", "elementwise", "files", "group", "precision", "ranges"},
  "models": {"api", "errors", "memory", "ranges", "precision", "sharding"},
  "data": {"api", "errors", "files", "memory", "ranges"},
  "events": LEAVES,
  "perf": LEAVES,
  "hosts": {"errors", "memory"},
  "engine": (KERNEL | {"contract", "hosts", "memory", "names"}) - {"ranges"},
  "asynchronous": KERNEL | {"contract", "engine", "events", "hosts", "memory"},
  "elastic": KERNEL | {"asynchronous", "engine", "events", "hosts", "names"},
  "config": CONFIG - {"config", "hosts", "engine", "asynchronous", "elastic", "perf"},
  "run": CONFIG,
  "costs": CONFIG | {"run"},
  "report": CONFIG | {"run", "costs"},
  "comparison": CONFIG | {"run", "costs", "report"},
  "library": CONFIG | {"run", "costs", "report", "comparison"},
  "__init__": set(),  # all names are imported on first use
}
FILES = sorted((ROOT / "ddl").rglob("*.py"))


def imports(path):
  """Full dotted names of all imports, inside functions too; relative ones are an error."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}:{node.lineno}: relative import"
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports(path):
  part = path.relative_to(ROOT / "ddl").parts[0].removesuffix(".py")
  assert part in MAY_IMPORT, f"ddl/{part}: say in tests/test_layering.py what it may import"
  for name in imports(path):
    top, *rest = name.split(".")
    assert top not in ("experiments", "configs", "run", "tests"), f"{path} imports {name}"
    if part == "perf":  # ddl.api imports optax, so perf may not have it either
      assert top not in ("jax", "jaxlib", "flax", "optax", "orbax"), f"{path} imports {name}"
    if top == "ddl" and rest != ["__version__"]:
      assert rest and rest[0] in MAY_IMPORT[part] | {part}, f"{path} imports {name}"


@pytest.mark.parametrize(
  "path", sorted((ROOT / "experiments").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_study_imports_no_other(path):
  part = path.relative_to(ROOT / "experiments").parts[0].removesuffix(".py")
  for name in imports(path):
    top, *rest = name.split(".")
    if top == "experiments" and part != "commands":
      assert rest and rest[0] == part, f"{path} imports {name}"


def test_layers_have_one_direction():
  order = [*MAY_IMPORT]
  for part, below in MAY_IMPORT.items():
    assert all(order.index(other) < order.index(part) for other in below), part


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_import_helpers_and_public_names_alone(path):
  for name in imports(path):
    parts = name.split(".")
    assert not any(part.startswith("test_") for part in parts), f"{path} imports another test: {name}"
    if parts[0] in ("ddl", "experiments"):
      private = [part for part in parts if part.startswith("_") and not part.startswith("__")]
      assert not private, f"{path} imports a private name: {name}"
