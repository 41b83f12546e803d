"""Flags that several commands share, and the import of all commands into one process."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from absl.testing import flagsaver
from helpers.commands import Command, complaint

from ddl.config.options import FLAGS
from experiments.command_line import cli, help
from run import COMMANDS

ROOT = Path(__file__).parents[2]
MODULES = [f"experiments.commands.{name}" for name in COMMANDS]


@pytest.mark.parametrize("order", [MODULES, MODULES[::-1]], ids=["forward", "backward"])
@pytest.mark.slow  # test_the_reference_is_current imports them in order
def test_all_commands_are_imported_into_one_process(order):
  code = f"import importlib\nfor name in {order}: importlib.import_module(name)\n"
  code += (
    "from experiments.commands import compare, plan, scale\nassert plan.BATCH.name == scale.BATCH.name == 'batch'\n"
  )
  code += "from absl import flags\nflags.FLAGS(['x', '--cluster=a,b', '--batch=3'])\n"
  code += "assert compare.CLUSTER.value == ['a', 'b'] and plan.BATCH.value == scale.BATCH.value == 3\n"
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["plan", "scale"])
@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--cluster="], "cluster must be one name or one .toml file, got none. The names are asr, "),
    (["--cluster=asr,fdr"], "cluster must be one name or one .toml file, got asr, fdr. The names are asr, "),
    (["--cluster=cori"], "Did you mean 'cori_fdr'?"),
    (["--cluster=asr", "--batch=0"], "batch"),
    (["--cluster=asr", "--servers=0"], "servers"),
    (["--cluster=asr", "--workers=x"], "workers must be"),
  ],
)
def test_invalid_values(wrong, command, arguments, words):
  wrong(["--model=cd_dnn", *arguments], words, command=command)


@pytest.mark.slow
def test_a_flag_of_training_commands_is_rejected_by_plan():
  line = complaint(Command("plan", "--model=cd_dnn", "--cluster=asr", "--devices=2").end())
  assert "devices must be unset for plan" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_the_help_is_valid_and_its_flags_are_grouped(command):
  importlib.import_module(f"experiments.commands.{command}")
  with flagsaver.flagsaver():
    rest = cli.parse(command, shlex.split(help.EXAMPLES[command]))
  assert all(argument.startswith("--config") for argument in rest)
  grouped = [name for names in help.GROUPS.values() for name in names]
  assert len({*grouped}) == len(grouped) and {*FLAGS} <= {*grouped}
  shown = help.text(command, cli.key_flags(command), with_config=False)
  assert sorted(re.findall(r"^  --(\w+)=", shown, re.MULTILINE)) == [flag.name for flag in cli.key_flags(command)]
