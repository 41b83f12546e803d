"""The rules for language of CONTRIBUTING.md: names, docstrings, and phrases that stop a reader."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = [
  ROOT / "run.py",
  *(file for part in ("ddl", "experiments", "configs", "tests") for file in sorted((ROOT / part).rglob("*.py"))),
]
PAGES = [
  ROOT / "README.md",
  *(page for part in ("docs", "experiments") for page in sorted((ROOT / part).rglob("*.md"))),
]
NAMES = {"found", "told", "said", "there", "here", "made", "chosen"}  # how a value was obtained, not what it is
PHRASES = (
  "anew", "beside", "by itself", "by themselves", "come along", "come and go", "comes along", "comes and goes",
  "each one's", "for real", "go on", "goes on", "going on", "gone on", "hereafter", "in vain", "is told",
  "are told", "was told", "lends", "likewise", "of whom", "one's own", "so many", "thereby", "went on",
  "whoever", "worked out", "works out",
)  # fmt: skip
WORDS = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
FRAGMENTS = {"As", "How", "Of", "That", "Those", "What", "When", "Where", "Whether", "Which", "Who"}  # first words


def modules() -> Iterator[tuple[str, ast.Module]]:
  """Yield the path and the syntax tree of each file."""
  for file in CODE:
    yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


def names_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
  """Yield the variables, arguments, functions and classes that a module defines, with their lines."""
  for node in ast.walk(tree):
    match node:
      case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
        yield name, node.lineno
      case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
        yield name, node.lineno


def fragments_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
  """Yield classes and functions, other than properties, whose docstring begins as a clause without a verb."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
      decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
      first = (ast.get_docstring(node) or "").split(" ")[0]
      if first in FRAGMENTS and not any(decorator.endswith("property") for decorator in decorators):
        yield getattr(node, "name", "module"), first


def test_names_say_what_a_value_is():
  assert [(file, *place) for file, tree in modules() for place in names_of(tree) if place[0] in NAMES] == []


def test_docstrings_are_sentences():
  assert [(file, *place) for file, tree in modules() for place in fragments_of(tree)] == []


@pytest.mark.parametrize("files", [CODE, PAGES], ids=["code", "pages"])
def test_phrases(files):
  assert [
    (str(file.relative_to(ROOT)), number, line.strip())
    for file in files
    for number, line in enumerate(file.read_text().splitlines(), 1)
    if file != Path(__file__) and WORDS.search(line)
  ] == []
