"""Every command and every Python block of the README, of docs/ and of the papers' pages runs; links have targets.

With `--slow`, the commands of a page run one after another in an empty folder, with fewer steps, seeds and cases.
"""

import contextlib
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

import jax
import numpy as np
import pytest
from helpers import launchers
from helpers.commands import Command, last_of_each
from helpers.comparisons import undrawn
from helpers.data_files import examples, idx_bytes
from helpers.forks import environment
from helpers.pages import LANGUAGES, PAGES, ROOT, blocks, commands

from experiments.commands import reference

SMALLER = {  # command: flags that replace those of the page
  "train": ("--config.steps=20", "--config.eval_every=20"),
  "compare": ("--config.steps=20", "--config.eval_every=10", "--config.compare.seeds=0,1"),
  "sweep": ("--config.steps=20", "--config.eval_every=10", "--trials=2"),
  "bench": ("--turns=1", "--only=digits 8x16 sync_sgd"),
  "netbench": ("--turns=1", "--algorithms=local_sgd", "--bandwidth=1gbit"),
}
TWO, WARM = "--only=local_sgd,dasgd", "--config.schedule.warmup=4"
SPECIAL = {  # part of a command: flags instead of those of SMALLER
  "--resume": (),
  "--workdir=runs/points": (*SMALLER["compare"], "--config.compare.seeds=0,", "--only=dasgd"),  # a grid
  "train --config=configs/text_transformer.py": (*SMALLER["train"], WARM),
  "sweep --config=configs/digits_compare.py": (*SMALLER["sweep"], TWO),
  "compare --config=configs/digits_compare.py": (*SMALLER["compare"], TWO),
  "compare --config=configs/digits_field.py": (*SMALLER["compare"], TWO),
  "sweep --config=configs/field_noniid.py": (*SMALLER["sweep"], "--only=d_psgd,choco_sgd"),
  "compare --config=configs/field_noniid.py": (*SMALLER["compare"], "--only=d_psgd,choco_sgd"),
  "sweep --config=configs/field_lm.py": (*SMALLER["sweep"], WARM, "--only=DaSGD"),
  "compare --config=configs/field_lm.py": (*SMALLER["compare"], WARM, "--only=DaSGD,SparseLoCo"),
  "train --config=configs/field_lm.py": (*SMALLER["train"], WARM),
  "compare --config=configs/churn_digits.py": (*SMALLER["compare"], TWO),
  "compare --config=configs/sc17_lenet.py": (*SMALLER["compare"], "--only=async_sgd,async_easgd"),
  "compare --config=configs/linear_speedup.py": (
    "--config.compare.grid=(('workers',(1,2)),('schedule.power',(1.0,)),('steps',(20,)))",
    "--config.compare.seeds=0,",
    "--only=local_sgd",
  ),
  "bench --rivals": ("--turns=1", "--only=mlp 2x64 sync_sgd"),
  "bench --asynchronous": ("--turns=1", "--only=digits 8x16 async_sgd"),
}
TESTED = (  # parts of commands that other tests run
  "run.py bench --perf", "run.py calibrate", "--cluster=measured",  # tests/commands/test_calibrate.py
  "run.py reproduce",  # tests/commands/test_reproduce.py
  "run.py plan",  # tests/commands/test_advice_page.py
  "experiments.bench.server_exchange",  # tests/asynchronous/test_ray.py
  "--hooks=ddl.trackers",  # tests/run/test_trackers.py
)  # fmt: skip
EXTRAS = {"--topology=v5": "libtpu", "--topology=h": "jax_cuda12_plugin"}  # part of a command: the package it needs
NETWORKS = os.geteuid() == 0 and Path("/dev/net/tun").exists()  # needed by netbench
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BRIEF = {"  target=0.9,\n": "  target=0.9, steps=50, eval_every=25,\n"}  # text of a block: its replacement by default
LONG = (  # pages whose Python blocks run only with --slow
  "docs/reference/grids.md",
  "docs/howto/custom_data.md",
  "docs/howto/custom_hook.md",
  "docs/howto/custom_model.md",
  "docs/howto/results_in_python.md",
  "docs/howto/your_own_loop.md",
  "docs/reference/schedules.md",
)
DONE = set()  # commands that have run and leave nothing for a later one


@pytest.fixture
def folder(tmp_path):
  """The repository, and the data files that the pages name."""
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
  [name for name, page in zip(NAMES, PAGES, strict=True) if commands(page)],
)
@pytest.mark.slow
def test_the_commands_run(name, folder):
  for command in commands(ROOT / name):
    words = shlex.split(command)
    program, arguments = words[0], words[1:]
    if program == "make":
      subprocess.run(["make", "--dry-run", *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    elif words[:3] == ["python", "-m", "pytest"]:  # which this suite has itself
      assert all((ROOT / path).exists() for path in words[3:] if not path.startswith("-"))
    elif words[:2] == ["pip", "install"]:
      check_installs(words[2:])
    elif runs(command):
      arguments = last_of_each([*arguments, *smaller(command)])
      if (program, *arguments) in DONE:
        continue
      if arguments[0] == "run.py":
        done = Command(*arguments[1:], cwd=folder).end(1800)
        assert done.code == 0, f"{command}\n{done.out}{done.error}"
      else:
        executable = sys.executable if program == "python" else str(folder / "bin" / program)
        subprocess.run([executable, *arguments], cwd=folder, env=environment(), check=True, timeout=1800)
      if "--workdir" not in command:
        DONE.add((program, *arguments))


def runs(command):
  """Return whether this test can and must run the command."""
  missing = [name for part, name in EXTRAS.items() if part in command and not importlib.util.find_spec(name)]
  return not missing and (NETWORKS or "run.py netbench" not in command) and not any(part in command for part in TESTED)


def smaller(command):
  """Return the flags that make a command of a page small."""
  for part, flags in SPECIAL.items():
    if part in command:
      return flags
  return next((flags for name, flags in SMALLER.items() if f"run.py {name}" in command), ())


def check_installs(arguments):
  """Check that a requirements file exists, or that the package has the extra."""
  if arguments[0] == "-r":
    assert (ROOT / arguments[1]).is_file()
  elif arguments != ["-e", "."]:  # tests/test_package.py installs it
    name, _, extra = arguments[0].rstrip("]").partition("[")
    assert not extra or extra in metadata.metadata(name).get_all("Provides-Extra", [])


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
    for name, page in zip(NAMES, PAGES, strict=True)
    if blocks(page, "python")
  ],
)
def test_the_python_blocks_run(name, folder, monkeypatch, capsys, pytestconfig):
  """A page's blocks run in order as one module; a `text` block after one has the numbers that it prints."""
  monkeypatch.chdir(folder)
  monkeypatch.setitem(sys.modules, "page", types.ModuleType("page"))  # so that ddl finds the functions of the blocks
  names, page = vars(sys.modules["page"]), (ROOT / name).read_text()
  if not pytestconfig.getoption("--slow"):
    for text, replacement in BRIEF.items():
      page = page.replace(text, replacement)
  drawing = contextlib.nullcontext() if pytestconfig.getoption("--slow") else undrawn()
  with drawing, jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users run them
    for code, printed in re.findall(
      r"^```python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", page, re.MULTILINE | re.DOTALL
    ):
      exec(compile(code, f"<{name}>", "exec"), names)  # a name that is no file: grain reads a function's source
      out = capsys.readouterr().out
      if printed:
        assert figures(out) == pytest.approx(figures(printed), abs=0.05), out


def figures(text):
  """Return the numbers in a text."""
  return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e[-+]\d+)?", text)]


def test_every_block_has_a_known_language_and_every_command_a_known_program():
  for page in PAGES:
    assert page.read_text().count("\n```") == 2 * len(blocks(page)), page
    assert {block.language for block in blocks(page)} <= set(LANGUAGES), page
    for command in commands(page):
      first, second = [*shlex.split(command), ""][:2]
      assert (first, second) in (("python", "run.py"), ("python", "-m"), ("pip", "install")) or first in (
        "make", "srun", "mpirun",
      ), f"{page}: no test runs {command}"  # fmt: skip
      assert not re.search(r"=(\.\.\.|[A-Z]+\b)", command), f"{page}: {command} has a placeholder"


def test_links_have_targets():
  for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
    for link, section in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
      target = page.parent / link if link else page
      assert link.startswith("https://") or target.exists(), f"{page}: {link}"
      assert not section or section in headings(target), f"{page}: {link}#{section}"


def headings(page):
  """Return the anchors of a page's headings on GitHub."""
  titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
  return [re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles]


def test_the_readme_is_short():
  assert len((ROOT / "README.md").read_text().splitlines()) <= 160


def test_the_reference_is_current():
  for name, text in reference.pages().items():
    assert (ROOT / "docs" / "reference" / name).read_text() == text, f"run: {reference.COMMAND}"


def test_the_reference_is_written_into_an_existing_folder(tmp_path):
  assert {file.name for file in reference.write(tmp_path)} == {*reference.pages()} == {*os.listdir(tmp_path)}
  with pytest.raises(ValueError, match="an existing folder"):
    reference.write(tmp_path / "nowhere")


@pytest.mark.slow
def test_the_flags_are_those_of_help():
  page = (ROOT / "docs" / "reference" / "commands.md").read_text()
  for section in page.split("\n## ")[1:]:
    command = section.partition("\n")[0]
    printed = Command(command, "--help").end().out
    listed, shown = (
      re.findall(r"^\| `(--\w+)`", section, re.MULTILINE),
      re.findall(r"^  (--\w+)=", printed, re.MULTILINE),
    )
    assert listed == sorted(shown), command


def test_the_example_of_a_custom_algorithm_equals_its_reference(x64):
  from helpers.twins import INNER, close, drive
  from reference import collective

  names = {"__name__": "page", "History": collective.History}
  first, twin, *_ = blocks(ROOT / "docs" / "howto" / "custom_algorithm.md", "python")
  exec(first.text, names)
  exec(twin.text, names)
  x0, grad = collective.problem(4, 12)
  hyper = {"period": 3, "delay": 2, "pull": 0.4}
  expected = names["delayed_pull_reference"](x0, grad, workers=4, steps=12, inner=INNER["momentum"][1], **hyper)
  algorithm = names["SPEC"].factory(INNER["momentum"][0], **hyper)
  params, evaluate, _ = drive(algorithm, x0, grad, workers=4, steps=12)
  close(params, expected.params)
  close(evaluate, np.repeat(expected.evaluate[:, None], 4, axis=1))
