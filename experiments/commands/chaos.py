"""`python run.py chaos`: a job whose processes are killed, stopped and cut off at random, and whether it minds.

Takes the flags of `train` for the job. The events are drawn from a seed; after each that ends a process the job goes on
from its last checkpoint. Every job has to end as an undisturbed one did: metrics, model and all workers' state, to the
last bit. With --elastic the others go on instead, and it has to end as its replay in virtual time, up to rounding.
"""

import time
from pathlib import Path

from absl import flags

from ddl.errors import OptionError
from ddl.names import pluralize
from ddl.run.processes import ROOT
from ddl.run.workdir import without, writable
from experiments.chaos.chaos import Chaos, Setting
from experiments.chaos.disturbances import ENDING, GOING_ON, KINDS, NETWORK, SEVERAL
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine
from experiments.netbench import network

MINUTES = flags.DEFINE_float("minutes", 2.0, "of disturbances", lower_bound=0.1, upper_bound=1e6)
RATE = flags.DEFINE_float("rate", 40.0, "events a minute, at random times", lower_bound=1.0, upper_bound=1e6)
SEED = flags.DEFINE_integer("seed", 0, "of the events", lower_bound=0)
WORKDIR = shared_flags.workdir()
ELASTIC = shared_flags.elastic()
OWN = ("minutes", "rate", "seed", "workdir")
OF_TRAIN = (  # that a job takes
  "devices", "members", "sharding", "processes", "join_timeout", "peer_timeout", "virtual_grad", "step_loop",
  "steps_per_call", "overlap", "batch_stats", "checkpoint_every", "init_from", "compilation_cache", "hooks",
)  # fmt: skip
for name in OF_TRAIN:
  shared_flags.option(name)
JOB = (  # without --config: some seconds of two processes
  f"--config={ROOT / 'configs' / 'digits.py'}", "--config.algorithm.name=dasgd", "--config.workers=2",
  "--config.steps=6000", "--config.eval_every=200", "--steps_per_call=20",
)  # fmt: skip
DEFAULTS = {"processes": "2", "peer_timeout": "3"}
THREE = ("--config.workers=3", "--steps_per_call=0")  # of three processes
CHECKPOINTS = 40  # of a job, unless --checkpoint_every says otherwise


def main(line: CommandLine) -> int:
  """Disturb jobs and compare them; return the exit code."""
  words = _words(line)
  several = flags.FLAGS.processes > 1 or not flags.FLAGS["processes"].present
  apart = several and _may_cut()
  elastic = ELASTIC.value or (line.config is not None and line.config.elastic)
  without_any = ENDING if elastic else GOING_ON
  kinds = [
    kind
    for kind in KINDS
    if kind not in without_any and (several or kind not in SEVERAL) and (apart or kind not in NETWORK)
  ]
  folder = writable(Path(WORKDIR.value or f"runs/chaos-{time.strftime('%Y%m%d-%H%M%S')}"))
  if folder.exists() and any(folder.iterdir()):
    raise OptionError("workdir", "an empty folder", folder)
  folder.mkdir(parents=True, exist_ok=True)
  silence = float(next(word for word in words if word.startswith("--peer_timeout=")).partition("=")[2])
  chaos = Chaos(Setting(words, folder, apart, silence, SEED.value, RATE.value, MINUTES.value, kinds, elastic), _say)
  chaos.run()
  rows = [f"{chaos.events[kind]:6} {KINDS[kind].words}" for kind in kinds]
  total = chaos.events.total()
  _say("\n".join(["", *rows]))
  _say(
    f"{pluralize(total, 'event')} in {chaos.seconds:.0f} s, {60 * total / chaos.seconds:.0f} a minute; "
    f"{pluralize(chaos.restarts, 'restart')} by launchers, {pluralize(chaos.resumes, 'resume')}\n"
    f"{pluralize(chaos.ended, 'job')} ended as {chaos.expected} ({chaos.undisturbed:.1f} s undisturbed); {folder}"
  )
  return 0


def _words(line: CommandLine) -> list[str]:
  """Return the flags of the job."""
  given = without(line.arguments, OWN)
  if line.config is None:  # of a flag in several of these the last one
    given = list({word.partition("=")[0]: word for word in (*JOB, *(THREE if ELASTIC.value else ()), *given)}.values())
  steps = line.config.steps if line.config is not None else 6000
  defaults = (
    DEFAULTS
    | ({"processes": "3", "peer_timeout": "5"} if ELASTIC.value else {})
    | {"checkpoint_every": str(max(1, steps // CHECKPOINTS))}
  )
  more = [f"--{name}={value}" for name, value in defaults.items() if not flags.FLAGS[name].present]
  return [*given, *more, "--max_restarts=1000000"]


def _may_cut() -> bool:
  try:
    network.check_rights()
  except ValueError as error:
    _say(f"the network is not cut: {error}")
    return False
  return True


def _say(text: str) -> None:
  print(text, flush=True)
