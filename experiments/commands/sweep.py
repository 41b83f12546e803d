"""`python run.py sweep`: tunes each algorithm with the same number of trials, on a validation split."""

from absl import flags

from ddl.comparison.sweep import sweep
from ddl.config import unread_keys
from ddl.config.sweep import Sweep
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine
from experiments.command_line.flags import run_options
from experiments.command_line.resume import record

TRIALS = flags.DEFINE_integer("trials", 0, "trials per algorithm; 0: config.sweep.trials", lower_bound=0)
ONLY = shared_flags.only()


def main(line: CommandLine) -> int:
  """Runs the sweep; returns the exit code."""
  chosen = Sweep.from_config(line.config, ONLY.value, TRIALS.value)
  unread_keys.check_taken("sweep", line.paths, chosen.experiments)
  unread_keys.check_virtual("sweep", line.paths, [each.algorithm.name for each in chosen.experiments.values()])
  sweep(chosen, run_options(line.words, record(line)))
  return 0
