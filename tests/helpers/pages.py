"""The README and the pages in docs/: their code blocks and commands."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("sh", "python", "toml", "text")  # commands, code that runs, a cluster, and what is only looked at
PROGRAMS = ("python", "make", "pip", "srun", "mpirun")
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
  """What stands between two fences."""

  language: str
  text: str


def blocks(page: Path, language: str = "") -> list[Block]:
  """The code blocks of a page, in order; of one language, or all."""
  result = [Block(*parts) for parts in FENCE.findall(page.read_text())]
  return [block for block in result if language in ("", block.language)]


def commands(page: Path) -> list[str]:
  """Every command of a page in order: the lines of its `sh` blocks, and programs with their arguments in its text."""
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
