"""The README, the pages in docs/ and those of the papers: their code blocks and commands."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
  ROOT / "README.md",
  *sorted((ROOT / "docs").rglob("*.md")),
  *sorted((ROOT / "experiments" / "papers").glob("*.md")),
]
LANGUAGES = ("sh", "python", "toml", "text")  # commands, code, a cluster file, and text that no test runs
PROGRAMS = ("python", "make", "pip", "srun", "mpirun")
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
  """A fenced code block."""

  language: str
  text: str


def blocks(page: Path, language: str = "") -> list[Block]:
  """Return the code blocks of a page in order: those of one language, or all."""
  result = [Block(*parts) for parts in FENCE.findall(page.read_text())]
  return [block for block in result if language in ("", block.language)]


def commands(page: Path) -> list[str]:
  """Return the commands of a page in order: lines of its `sh` blocks, and code spans that start with a program."""
  out = []
  for part in re.split(r"(^```.*?^```$)", page.read_text(), flags=re.MULTILINE | re.DOTALL):
    fenced = FENCE.match(part)
    if not fenced:
      spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", part)]
      out += [span for span in spans if span.startswith(tuple(f"{program} " for program in PROGRAMS))]
    elif fenced[1] == "sh":
      lines = fenced[2].replace("\\\n", " ").splitlines()
      out += [" ".join(line.partition(" #")[0].split()) for line in lines if not line.startswith("#")]
  return [command for command in out if command]
