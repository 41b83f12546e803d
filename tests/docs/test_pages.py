"""Every command and every Python block of the README and of docs/ runs; the generated pages are current.

The normal tests run the commands of some pages one after another in an empty folder, with fewer steps, and leave out
what takes minutes; `--slow` runs all of them as they are written.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from helpers import launchers
from helpers.commands import Command
from helpers.data_files import examples, idx_bytes
from helpers.forks import environment
from helpers.pages import LANGUAGES, PAGES, ROOT, blocks, commands

from experiments.commands import reference

QUICKLY = {  # command: what makes it quick
  "train": ("--config.steps=20", "--config.eval_every=20"),
  "reproduce": ("--check",),
}
MINUTES = (  # parts of commands that are left to --slow: they measure, start processes, or compile for long
  "run.py bench", "run.py netbench", "run.py calibrate", "run.py sweep",
  "run.py compare --config=configs/digits_compare.py", "--cluster=measured", "--runtime=ray",
  "-m experiments.bench", "srun ", "mpirun ",
  "--processes=2", "lenet", "text_transformer", "compare --config=configs/async",
)  # fmt: skip
EXTRAS = {"--topology=v5": "libtpu", "--topology=h": "jax_cuda12_plugin"}  # part of commands: what they need
NETWORKS = os.geteuid() == 0 and Path("/dev/net/tun").exists()  # what netbench takes
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FAST = ("README.md",)  # the commands of other pages are left to --slow
LONG = (
  "docs/howto/grids.md",
  "docs/howto/library.md",
  "docs/howto/own_schedule.md",
)  # whose Python blocks are left to --slow
DONE = set()  # commands that another page has too, and that leave nothing for a later one


@pytest.fixture
def folder(tmp_path):
  """What a reader has before a page begins: the repository, and the data files that the pages name."""
  for name in (
    "run.py",
    "configs",
    "ddl",
    "experiments",
    "Makefile",
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-ray.txt",
    "requirements-tokenize.txt",
    "requirements-dryrun.txt",
    "requirements-dryrun-cuda.txt",
    "constraints.txt",
    "pyproject.toml",
  ):
    (tmp_path / name).symlink_to(ROOT / name)
  shutil.copytree(ROOT / "docs", tmp_path / "docs")
  (tmp_path / "mnist").mkdir()
  for part, size in (("train", 160), ("t10k", 20)):
    images, labels = examples(size, (28, 28))
    (tmp_path / "mnist" / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (tmp_path / "mnist" / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
  images, labels = examples(192, (28, 28))  # a sixth is the test set
  np.savez(tmp_path / "mnist.npz", image=images, label=labels)
  (tmp_path / "corpus.txt").write_text("So much of it that a tenth holds a window, and more than one.\n" * 40)
  launchers.install(tmp_path / "bin")
  return tmp_path


@pytest.mark.parametrize(
  "name",
  [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name, page in zip(NAMES, PAGES, strict=True)
    if commands(page)
  ],
)
def test_the_commands_run(name, folder, pytestconfig):
  slow = pytestconfig.getoption("--slow")
  for command in commands(ROOT / name):
    words = shlex.split(command)
    if any(part in command and not importlib.util.find_spec(name) for part, name in EXTRAS.items()):
      continue
    if "run.py netbench" in command and not NETWORKS:
      continue
    if command in DONE or (not slow and any(part in command for part in MINUTES)):
      continue
    if words[0] == "make":
      subprocess.run(["make", "--dry-run", *words[1:]], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    elif words[:3] == ["python", "-m", "pytest"]:  # which this suite has itself
      assert all((ROOT / path).exists() for path in words[3:] if not path.startswith("-"))
    elif words[:2] == ["pip", "install"]:
      check_installs(words[2:])
    elif slow or words[:2] != ["python", "run.py"]:
      # A calibration of this machine is kept in the user's cache, but not that of a test.
      variables = environment() | {"XDG_CACHE_HOME": str(folder / "cache")}
      program = {"python": sys.executable}.get(words[0], str(folder / "bin" / words[0]))
      done = subprocess.run(
        [program, *words[1:]], cwd=folder, env=variables, capture_output=True, text=True, timeout=1800
      )
      assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    else:
      # What is resumed has its settings already.
      more = () if "--resume" in words else QUICKLY.get("".join(words[2:3]), ())
      done = Command(*words[2:], *more, cwd=folder).end()
      assert done.code == 0, f"{command}\n{done.out}{done.error}"
    if "--workdir" not in command:
      DONE.add(command)


def check_installs(wanted):
  """What is installed from a registry is one of ours, or an extra that it has; a file or this folder is there."""
  if wanted[0] == "-r":
    assert (ROOT / wanted[1]).is_file()
  elif wanted != ["-e", "."]:  # tests/test_package.py installs it
    name, _, extra = wanted[0].rstrip("]").partition("[")
    assert not extra or extra in metadata.metadata(name).get_all("Provides-Extra", [])


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
    for name, page in zip(NAMES, PAGES, strict=True)
    if blocks(page, "python")
  ],
)
def test_the_python_blocks_run(name, folder, monkeypatch, capsys):
  """A page's blocks one after another, as one module; what a `text` block right behind prints is what comes out."""
  monkeypatch.chdir(folder)
  monkeypatch.setitem(sys.modules, "page", types.ModuleType("page"))  # a notebook's functions are found again, too
  names, page = vars(sys.modules["page"]), (ROOT / name).read_text()
  for code, printed in re.findall(r"^```python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", page, re.MULTILINE | re.DOTALL):
    exec(compile(code, f"<{name}>", "exec"), names)  # no file: grain looks for the source of a function there
    out = capsys.readouterr().out
    if printed:
      assert figures(out) == pytest.approx(figures(printed), abs=0.05), out


def figures(text):
  return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e[-+]\d+)?", text)]


def test_nothing_is_left_out():
  """Every fence has a language that says what becomes of it; every command is of a program that a test runs."""
  for page in PAGES:
    assert page.read_text().count("\n```") == 2 * len(blocks(page)), page
    assert {block.language for block in blocks(page)} <= set(LANGUAGES), page
    for command in commands(page):
      first, second = [*shlex.split(command), ""][:2]
      assert (first, second) in (("python", "run.py"), ("python", "-m"), ("pip", "install")) or first in (
        "make", "srun", "mpirun",
      ), f"{page}: no test runs {command}"  # fmt: skip
      assert not re.search(r"=(\.\.\.|[A-Z]+\b)", command), f"{page}: {command} is no whole command"


def test_links_lead_somewhere():
  for page in PAGES:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
      assert link.startswith("https://") or (page.parent / link).exists(), f"{page}: {link}"


def test_the_readme_is_short():
  assert len((ROOT / "README.md").read_text().splitlines()) <= 170


def test_the_reference_is_current():
  for name, text in reference.pages().items():
    assert (ROOT / "docs" / "reference" / name).read_text() == text, f"run: {reference.COMMAND}"


def test_the_reference_goes_where_it_is_told(tmp_path):
  written = reference.write(tmp_path)
  assert {file.name for file in written} == {file.name for file in (ROOT / "docs" / "reference").iterdir()}
  with pytest.raises(ValueError, match="an existing folder"):
    reference.write(tmp_path / "nowhere")


@pytest.mark.slow
def test_the_flags_are_those_of_help():
  page = (ROOT / "docs" / "reference" / "commands.md").read_text()
  for section in page.split("\n## ")[1:]:
    command = section.partition("\n")[0]
    reported = subprocess.run(
      [sys.executable, "run.py", command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"^\| `(--\w+)`", section, re.MULTILINE) == re.findall(r"^  (--\w+)=", reported, re.MULTILINE), (
      command
    )


def test_a_new_algorithm_is_its_reference(x64, monkeypatch):
  """docs/howto/own_algorithm.md: the example with its registry lines, as the tests of algorithms take them."""
  from helpers.twins import INNER, close, drive
  from reference import collective

  names = {"__name__": "page", "History": collective.History}
  first, twin, *_ = blocks(ROOT / "docs" / "howto" / "own_algorithm.md", "python")
  exec(first.text, names)
  exec(twin.text, names)
  x0, grad = collective.problem(4, 12)
  hyper = {"period": 3, "delay": 2, "pull": 0.4}
  expected = names["delayed_pull_reference"](x0, grad, workers=4, steps=12, inner=INNER["momentum"][1], **hyper)
  algorithm = names["SPEC"].factory(INNER["momentum"][0], **hyper)
  params, evaluate, _ = drive(algorithm, x0, grad, workers=4, steps=12)
  close(params, expected.params)
  close(evaluate, np.repeat(expected.evaluate[:, None], 4, axis=1))
