"""`python run.py sweep`: tune each algorithm at each grid point, with equally many trials, on a validation split."""

from absl import flags

from ddl.config import unread_keys
from ddl.config.sweep import Sweep
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine

shared_flags.run_flags("sweep")
TRIALS = flags.DEFINE_integer("trials", 0, "trials per algorithm and grid point; 0: config.sweep.trials", lower_bound=0)
ONLY = shared_flags.only()


def main(line: CommandLine) -> int:
  """Run the sweep and return the exit code."""
  from ddl.comparison.sweep import sweep  # slow to import, and --help does not need it

  line.config.sweep.trials = TRIALS.value or line.config.sweep.trials
  settings = Sweep.from_config(line.config, ONLY.value)
  experiments = settings.experiments.values()
  unread_keys.check_taken("sweep", line.paths, experiments)
  unread_keys.check_virtual("sweep", line.paths, experiments)
  sweep(settings, shared_flags.run_options(line, only=ONLY.value))
  return 0
