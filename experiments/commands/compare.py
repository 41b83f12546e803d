"""`python run.py compare`: train several algorithms with several seeds on the same budget, and write a report."""

from absl import flags

from ddl.config import unread_keys
from ddl.config.comparison import Comparison
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine

shared_flags.run_flags("compare")
TUNED = flags.DEFINE_string("tuned", "", "tuned.json of a sweep: learning rate and hyperparameters of each algorithm")
ONLY = shared_flags.only()
CLUSTER = shared_flags.cluster()


def main(line: CommandLine) -> int:
  """Run the comparison and return the exit code."""
  from ddl.comparison.compare import compare  # slow to import, and --help does not need it

  comparison = Comparison.from_config(line.config, ONLY.value, TUNED.value, CLUSTER.value)
  experiments = comparison.experiments.values()
  unread_keys.check_taken("compare", line.paths, experiments)
  unread_keys.check_virtual("compare", line.paths, experiments)
  options = shared_flags.run_options(line, only=ONLY.value, cluster=CLUSTER.value, tuned=TUNED.value)
  compare(comparison, options)
  return 0
