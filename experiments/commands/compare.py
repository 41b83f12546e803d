"""`python run.py compare`: several algorithms over several seeds on the same budget of examples, and a report."""

from absl import flags

from ddl.comparison.compare import compare
from ddl.config import unread_keys
from ddl.config.comparison import Comparison
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine
from experiments.command_line.flags import run_options
from experiments.command_line.resume import record

TUNED = shared_flags.tuned()
ONLY = shared_flags.only()
CLUSTER = shared_flags.cluster()
shared_flags.checkpoint_every()
flags.DEFINE_bool("keep_models", False, "keep the final model of each run, for ddl.load and --init_from")


def main(line: CommandLine) -> int:
  """Runs the comparison; returns the exit code."""
  comparison = Comparison.from_config(line.config, ONLY.value, TUNED.value, CLUSTER.value)
  unread_keys.check_taken("compare", line.paths, comparison.experiments)
  unread_keys.check_virtual("compare", line.paths, [each.algorithm.name for each in comparison.experiments.values()])
  compare(comparison, run_options(line.words, record(line)))
  return 0
