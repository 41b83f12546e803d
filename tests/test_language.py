"""The rules for language of CONTRIBUTING.md: names of variables, and words that a reader stumbles over."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = [ROOT / "run.py", *(file for part in ("ddl", "experiments") for file in sorted((ROOT / part).rglob("*.py")))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = {"found", "told", "said", "there", "here", "made", "chosen"}  # how a value was obtained, not what it is
PHRASES = (
  "anew", "so many", "by itself", "by themselves", "of one's own", "come and go", "comes and goes", "each one's",
  "is told", "are told", "was told", "goes on", "go on", "going on", "went on", "for real",
)  # fmt: skip
WORDS = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)


def names_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
  """Yield the variables, arguments, functions and classes that a module defines, with their lines."""
  for node in ast.walk(tree):
    match node:
      case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
        yield name, node.lineno
      case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
        yield name, node.lineno


def test_names_say_what_a_value_is():
  vague = {str(file.relative_to(ROOT)): names_of(ast.parse(file.read_text())) for file in [*CODE, *TESTS]}
  assert [(file, *place) for file, places in vague.items() for place in places if place[0] in NAMES] == []


def test_phrases():
  lines = [
    (file, number, line) for file in [*CODE, *PAGES] for number, line in enumerate(file.read_text().splitlines(), 1)
  ]
  assert [
    (str(file.relative_to(ROOT)), number, line.strip()) for file, number, line in lines if WORDS.search(line)
  ] == []
