"""The command line as a real process: exit codes, help and missing libraries."""

import subprocess
import sys

import pytest
from helpers.commands import ROOT, Command, complaint

DIGITS, RATE = "--config=configs/digits.py", "--config.optimizer.learning_rate="


@pytest.mark.slow
def test_help_a_misspelled_name_and_a_diverged_run(tmp_path):
  first = Command("train", DIGITS, "--config.algorithm.name=dasdg", f"--workdir={tmp_path}/a")
  second = Command("train", DIGITS, f"{RATE}3e38", f"--workdir={tmp_path}/b", "--config.steps=20")
  assert "--virtual_grad" in Command("train", "--help").end().out
  line = complaint(first.end())
  assert line.startswith("train: config.algorithm.name must be one of sync_sgd,")
  assert line.endswith("got 'dasdg'. Did you mean 'dasgd'?")
  line = complaint(second.end())
  assert "sync_sgd diverged: its loss is nan at step 2; try config.optimizer.learning_rate below 3e+38" in line


def test_help_usage_and_unknown_command():
  for arguments, code, words in (
    (["--help"], 0, "compare"),
    ([], 0, "usage: python run.py COMMAND"),
    (["trian"], 2, "unknown command 'trian'; the commands are train"),
  ):
    done = Command(*arguments).end()
    assert done.code == code and words in (done.error if code else done.out), done
    assert "Traceback" not in done.error


def test_help_does_not_import_jax():
  code = "import sys, runpy; sys.argv = ['run.py', '--help']\ntry: runpy.run_path('run.py', run_name='__main__')\n"
  code += (
    "except SystemExit as e: assert not e.code\nassert not {'jax', 'numpy', 'absl', 'experiments'} & set(sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_a_missing_library_is_named():
  done = subprocess.run(
    [sys.executable, "-S", "run.py", "list"], cwd=ROOT, check=False, timeout=60, capture_output=True, text=True
  )
  assert done.returncode == 2 and done.stderr.count("\n") == 1, done
  assert "is not installed; run python -m pip install -r requirements.txt" in done.stderr
