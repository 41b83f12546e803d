"""The README and the pages in docs/: their code blocks and commands; and a quicker way to run these."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("sh", "python", "text")  # commands, code that runs, and what is only looked at
PROGRAMS = ("python", "make", "pip", "srun", "mpirun")
LIBRARIES = (
  "flax.linen", "matplotlib.pyplot", "ml_collections.config_flags", "orbax.checkpoint", "sklearn.datasets",
  "sklearn.model_selection", "scipy.stats", "tensorboardX", "jinja2", "tqdm",
)  # fmt: skip
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
  """What stands between two fences."""

  language: str
  text: str


def blocks(page: Path, language: str = "") -> list[Block]:
  """The code blocks of a page, in order; of one language, or all."""
  found = [Block(*parts) for parts in FENCE.findall(page.read_text())]
  return [block for block in found if language in ("", block.language)]


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


def environment() -> dict[str, str]:
  """A reader's, but for the cache of compiled programs."""
  kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") or "CACHE" in k}
  return kept | {"JAX_PLATFORMS": "cpu"}


class Forks:
  """`python run.py ...` in a fork of one process that has imported the libraries, which saves seconds each time."""

  def __init__(self) -> None:
    """Starts that process."""
    self._process = subprocess.Popen(
      [sys.executable, __file__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment() | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # compiling is most of a short run
    )

  def run(self, arguments: list[str], folder: Path) -> tuple[int, str]:
    """Runs it in a folder; returns the exit code and what it printed."""
    assert self._process.stdin and self._process.stdout
    self._process.stdin.write(json.dumps({"arguments": arguments, "folder": str(folder)}) + "\n")
    self._process.stdin.flush()
    answer = json.loads(self._process.stdout.readline())
    return answer["code"], answer["printed"]

  def end(self) -> None:
    """Ends the process."""
    self._process.kill()
    self._process.wait()


def serve() -> None:
  """The process behind `Forks`: a fork per line of its input, before any of JAX's threads."""
  import signal
  import tempfile

  sys.path.insert(0, str(ROOT))
  for library in LIBRARIES:
    importlib.import_module(library)
  import run

  for line in sys.stdin:
    asked = json.loads(line)
    with tempfile.TemporaryFile() as printed:
      child = os.fork()
      if not child:
        signal.alarm(200)  # a command that hangs is killed, and its test fails
        os.chdir(asked["folder"])
        for descriptor in (1, 2):
          os.dup2(printed.fileno(), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["run.py", *asked["arguments"]]
        sys.exit(run.main())
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      printed.seek(0)
      print(json.dumps({"code": code, "printed": printed.read().decode(errors="replace")}), flush=True)


if __name__ == "__main__":
  serve()
