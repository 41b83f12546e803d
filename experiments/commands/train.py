"""`python run.py train`: train one model with one algorithm."""

from dataclasses import replace

from ddl.config import unread_keys
from ddl.config.catalog import has_server
from ddl.config.experiment import Experiment
from ddl.errors import OptionError
from ddl.report import draw_schedule
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine

shared_flags.run_flags("train")
EXPLAIN = shared_flags.explain()


def main(line: CommandLine) -> int:
  """Run the training and return the exit code."""
  from ddl.run.train import train  # slow to import, and --help does not need it

  options, algorithm = shared_flags.run_options(line), line.config.algorithm.name
  if EXPLAIN.value:
    if has_server(algorithm):
      raise OptionError("config.algorithm.name", "the name of a collective algorithm if explain is set", algorithm)
    from experiments.dryrun.compiled import explain  # most runs do not need it

    options = replace(options, hooks=(*options.hooks, explain))
  options = replace(options, hooks=(*options.hooks, draw_schedule))
  unread_keys.check_virtual("train", line.paths, [line.config])
  train(Experiment.from_config(line.config), options)
  return 0
