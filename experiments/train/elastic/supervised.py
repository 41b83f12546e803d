"""A run whose processes come and go: each has a supervisor, which trains in forks of itself."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from ddl.runtime import hosts
from ddl.runtime.hosts.addresses import host_port
from ddl.runtime.hosts.supervision import LOST, Job, Memory, Order, Supervisor
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.train import agreement
from experiments.train.exit_codes import Failed, Stopped, exit_code
from experiments.train.folder.run_dir import RunFolder
from experiments.train.folder.workdir import check_folder

MEMBERS = "members.json"  # where the supervisors are
COLLECTIVE = (
  "Gloo",
  "NCCL",
  "coordination service",
  "has not come to",
  "was not reached",
)  # what one lacked says of it

Run = Callable[[Order, Memory], object]


def supervise(experiment: Experiment, options: RunOptions, path: Path, run: Run) -> None:
  """Supervise this process of the job until its end. run: trains as an order says, in a fork.

  Raises:
    Failed: if the job did not come to its end, or goes on without this process.
    ValueError: if the processes do not find each other, or differ.
  """
  me, folder = hosts.member(), RunFolder(path)

  def train(order: Order, memory: Memory) -> int:
    index = order.ranks.index(me.rank)
    place = me._replace(rank=index, count=len(order.ranks), coordinator=host_port(*order.coordinator))
    os.environ[hosts.JOINED] = str(place)
    hosts.declare()
    return exit_code("train", lambda: _alone_in_failing(lambda: run(order, memory), len(order.ranks)))

  job = Job(
    run=train,
    same=agreement.text(experiment.to_json(), options),
    differs=agreement.difference,
    check=(lambda: None) if hosts.RESTARTED in os.environ else lambda: check_folder(path, experiment, options),
    begun=folder.has_begun,
    file=path / MEMBERS,
    say=lambda text: hosts.tell(f"train: {text}"),
    join_timeout=options.join_timeout,
    silence=options.peer_timeout,
  )
  if code := Supervisor(me, job).supervise():
    raise Failed(code)


def _alone_in_failing(run: Callable[[], object], processes: int) -> int:
  """Return the exit code. What fails as another process is lost is for the supervisor, which ends this one."""
  try:
    run()
    code = 0
  except Stopped as stopped:
    if hosts.is_main():
      print(stopped.message, flush=True)
    code = 128 + stopped.args[1]
  except Exception as error:
    if processes > 1:
      time.sleep(hosts.GRACE)
      if any(words in str(error) for words in COLLECTIVE):
        return LOST
    raise
  if processes > 1:
    hosts.exchange("done")  # the first one's end would be a loss to the others
  return code
