"""The driver of elastic training with real processes on Ray.

The driver starts the actors and waits until one fails or a replacement can join. It then stops all actors, because a
process can join a group of `jax.distributed` only once, and starts new actors for the next membership (group of
processes, see `ProcessGroup`), which resumes from the states in the keepers.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.asynchronous import ray_cluster
from ddl.elastic.keeper import Keeper, ProcessGroup, Report
from ddl.elastic.training_process import HEARTBEAT, TrainingProcess

ATTEMPTS = 3  # the job fails after this many successive memberships that end at the same step with all processes alive
GRACE = 3.0  # seconds to wait until the other processes detect a failure
REPLACEMENT = 10.0  # seconds to wait for a replacement to start; a late one joins when it is ready
SAVING = 15.0  # maximum seconds that processes take to save after a request to stop
FORWARDED = ("JAX_", "XLA_", "DDL_", "TF_CPP_")  # prefixes of environment variables that the processes inherit


class JobFailed(Exception):
  """Raised if an elastic job cannot continue. args: the reason, in one line."""


class Outcome(NamedTuple):
  """The outcome of one membership: how each process ended, and which processes can join."""

  results: dict[int, Any]  # rank -> result of `run`
  errors: dict[int, Exception]  # rank -> exception raised
  failed: set[int]  # ranks of processes that died or sent no heartbeat
  joined: set[int]  # ranks that are ready to join


class RayJob:
  """The driver of an elastic job."""

  def __init__(
    self, run: Callable[[ProcessGroup], Any], first: ProcessGroup, options: Any, resume: Callable[[], bool],
    report: Callable[[str], None],
  ):  # fmt: skip
    """Start Ray or connect to a Ray cluster.

    Args:
      run: the training function of a process; it is pickled.
      first: the first membership, with all processes.
      options: `RunOptions` of the job.
      resume: a function that returns whether a checkpoint may exist now.
      report: a function that prints a line to stderr.

    Raises:
      ValueError: if Ray is not installed or its cluster cannot be reached.
    """
    local = not options.ray_address
    if local:
      os.environ.setdefault(ray_cluster.ONE_HOST, "0")
    self._ray, self._run, self._next, self._options = ray_cluster.require(), run, first, options
    self._resume, self._report, self._replacements = resume, report, options.max_restarts
    self._started = not self._ray.is_initialized()
    if self._started:
      cpus = int(np.ceil(2 * first.processes * options.worker_cpus))  # two memberships, as the next one starts early
      ray_cluster.connect(options.ray_address or None, cpus=cpus)
    kind = np.dtype(np.float64 if jax.config.values["jax_enable_x64"] else np.float32)
    self._environment = ray_cluster.process_environment(kind, options.worker_gpus, local)
    self._environment["env_vars"] |= {key: value for key, value in os.environ.items() if key.startswith(FORWARDED)}
    self._keepers, self._nodes = dict[str, Any](), dict[int, str]()  # node -> keeper; rank -> node
    self._starting = dict[int, tuple[Any, Any]]()  # rank -> (actor of the next membership, its node)
    self._attempts: list[int] = []  # steps of memberships that ended without losing a process
    self.signal = 0  # the signal received to stop the job

  def train(self) -> Any:
    """Run the job to its end; return the result of the first process.

    Raises:
      JobFailed: if too few processes remain, training fails repeatedly at the same step, or the job is stopped before
        its state can be saved.
      Exception: raised by a process, if no process was lost.
    """
    before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
      while not self.signal:
        actors = self._start()
        outcome = self._watch(actors)
        for actor in actors.values():
          self._ray.kill(actor)
        if min(actors) in outcome.results:
          return outcome.results[min(actors)]
        self._decide(outcome, {*actors})
      raise JobFailed("stopped before the first step")
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
      for actor in (*(actor for actor, _ in self._starting.values()), *self._keepers.values()):
        self._ray.kill(actor)
      if self._started:
        self._ray.shutdown()

  def _on_signal(self, number: int, _frame: object) -> None:
    if self.signal:  # second signal
      sys.exit(128 + number)
    self.signal = number

  def _create_actors(self, ranks: Iterable[int]) -> None:
    """Create the next membership's missing actors; place each survivor's actor on its keeper's node if possible."""
    for rank in {*ranks} - {*self._starting}:
      node, strategy = self._nodes.get(rank), "SPREAD"
      if node in self._keepers:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
      kind = self._ray.remote(num_cpus=self._options.worker_cpus, num_gpus=self._options.worker_gpus)(TrainingProcess)
      actor = kind.options(scheduling_strategy=strategy, runtime_env=self._environment).remote(self._run)
      self._starting[rank] = actor, actor.node.remote()

  def _ready(self, ranks: Collection[int], seconds: float) -> set[int]:
    """Return those of `ranks` whose new actor becomes ready within `seconds`."""
    nodes = {self._starting[rank][1]: rank for rank in ranks}
    ready = self._ray.wait([*nodes], num_returns=len(nodes), timeout=seconds)[0] if nodes else []
    return {nodes[node] for node in ready}

  def _start(self) -> dict[int, Any]:
    """Start the next membership; return its actors by rank. If an actor dies meanwhile, start with new actors."""
    left = ATTEMPTS
    while True:
      try:
        return self._begin()
      except self._ray.exceptions.RayError as error:
        left -= 1
        if not left or not isinstance(error, self._ray.exceptions.RayActorError):
          raise ValueError(f"Ray could not start a process: {str(error).strip().splitlines()[-1]}") from error
        for actor, _ in self._starting.values():
          self._ray.kill(actor)
        self._starting.clear()

  def _begin(self) -> dict[int, Any]:
    """Start the next membership; return its actors by rank. A replacement that is not ready in time joins later."""
    ranks, needed = self._next.ranks, self._next.survivors or self._next.ranks
    self._create_actors(ranks)
    if late := {*needed} - self._ready(needed, self._options.join_timeout):
      seconds = f"{self._options.join_timeout:g} s"
      raise ValueError(f"Ray did not start {_names(late)} within {seconds}. Check worker_cpus and worker_gpus.")
    ready = sorted(self._ready(ranks, REPLACEMENT))
    actors, nodes = {rank: self._starting[rank][0] for rank in ready}, [self._starting[rank][1] for rank in ready]
    address = self._ray.get(actors[min(actors)].address.remote())
    for rank, node in zip(ready, map(str, self._ray.get(nodes)), strict=True):
      del self._starting[rank]
      self._nodes[rank] = node
      if node not in self._keepers:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        kind = self._ray.remote(num_cpus=0, scheduling_strategy=strategy, runtime_env=self._environment)(Keeper)
        self._keepers[node] = kind.remote()
    number, resume = self._next.number + 1, self._resume()
    self._next = replace(self._next, number=number, ranks=(*actors,), coordinator=address, resume=resume)
    begun = [keeper.begin.remote(number, self._next.survivors, self._next.step) for keeper in self._keepers.values()]
    self._ray.wait(begun, num_returns=len(begun), timeout=self._options.join_timeout)  # new actors first import modules
    return actors

  def _watch(self, actors: dict[int, Any]) -> Outcome:
    """Wait until all processes of a membership end, one fails, or another can join; return the outcome."""
    outcome, begin, deadline, stopping = Outcome({}, {}, set(), set()), time.monotonic(), float("inf"), False
    running = dict[Any, int]()
    for rank, actor in actors.items():
      running[actor.train.remote(replace(self._next, rank=rank, keeper=self._keepers[self._nodes[rank]]))] = rank
    while running and time.monotonic() < deadline and not outcome.joined:
      for ref in self._ray.wait([*running], timeout=HEARTBEAT)[0]:
        self._collect(ref, running.pop(ref), outcome)
      reports = self._reports()
      silence = dict.fromkeys(running.values(), time.monotonic() - begin)
      silence |= {rank: seconds for report in reports.values() for rank, seconds in report.silence.items()}
      limit = GRACE if outcome.errors else self._options.peer_timeout
      outcome.failed.update(rank for rank in running.values() if silence[rank] > limit or self._lost(rank))
      if self.signal and not stopping:
        stopping, deadline = True, time.monotonic() + SAVING
        for keeper in self._keepers.values():
          keeper.stop.remote(self.signal)
      if outcome.failed or outcome.errors:
        deadline = min(deadline, time.monotonic() + GRACE)
      elif any(max(steps) > self._next.step for report in reports.values() for steps in report.steps.values()):
        outcome.joined.update(self._ready({*self._starting} - {*actors}, 0))
        if not self._options.worker_gpus:  # create the next actors early, so that their imports overlap training
          self._create_actors(actors)
    return outcome

  def _lost(self, rank: int) -> bool:
    return self._nodes[rank] not in self._keepers

  def _collect(self, ref: Any, rank: int, outcome: Outcome) -> None:
    try:
      outcome.results[rank] = self._ray.get(ref)
    except self._ray.exceptions.RayTaskError as error:
      # Keep the traceback of the process for other errors.
      known = isinstance(error.cause, (ValueError, OSError)) or self.signal
      outcome.errors[rank] = error.cause if known else error
    except self._ray.exceptions.RayError:
      outcome.failed.add(rank)

  def _reports(self) -> dict[str, Report]:
    """Return the report of each keeper, and print the main process's output. A keeper without a report has failed."""
    reports = dict[str, Report]()
    for node, ref in {node: keeper.report.remote() for node, keeper in self._keepers.items()}.items():
      try:
        reports[node] = self._ray.get(ref, timeout=self._options.peer_timeout)
        print(reports[node].text, end="", flush=True)
      except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
        self._ray.kill(self._keepers.pop(node))
    return reports

  def _decide(self, outcome: Outcome, ranks: set[int]) -> None:
    """Choose the next membership: its ranks, and the step and states from which they continue."""
    failed, total = outcome.failed, f"of {self._next.processes}"
    if min(ranks) in failed:  # the coordinator's process; the others end with it, but keep their states
      failed = {rank for rank in failed if rank == min(ranks) or self._lost(rank)}
    replaced = {*sorted(failed)[: self._replacements]}
    errors = {rank: error for rank, error in sorted(outcome.errors.items()) if not _may_follow_from_loss(error)}
    if self.signal or (errors and not failed):
      for rank, error in errors.items():
        if self.signal or not self._next.survivors or rank in self._next.survivors:
          raise error
        self._report(f"process {rank} {total}: {error}")  # a new process failed; the others continue
      failed |= {*errors}
    if self.signal:
      raise JobFailed("stopped before the state could be saved")
    keepers = dict[int, dict[int, Any]]()  # step -> rank -> keeper of its state
    for node, report in self._reports().items():
      for rank in report.steps.keys() & (ranks - failed):
        for step in report.steps[rank]:
          keepers.setdefault(step, {})[rank] = self._keepers[node]
    step = max(keepers, key=lambda step: (len(keepers[step]), step), default=-1)
    if not failed and not outcome.joined:
      self._attempts = [before for before in self._attempts if before == step] + [step]
      if len(self._attempts) == ATTEMPTS:
        error = next(iter(outcome.errors.values()), "no process responded")
        reason = str(getattr(error, "cause", error)).partition("\n")[0]
        raise JobFailed(f"training failed {ATTEMPTS} times in a row after step {max(step, 0)}: {reason}")
    self._replacements -= len(replaced)
    remaining = (ranks - failed) | outcome.joined | replaced
    if not keepers and len(remaining) < self._next.processes:
      raise JobFailed(f"{_names(failed)} {total} failed, and no other process has completed a round")
    for rank in failed:
      del self._nodes[rank]
      if rank in self._starting and rank not in replaced:
        self._ray.kill(self._starting.pop(rank)[0])
    events = [f"{_names(failed)} {total} failed"] * bool(failed) + ["a replacement starts"] * bool(replaced)
    events += [f"{_names(outcome.joined)} {total} joined"] * bool(outcome.joined)
    event = ", ".join(events) or "a connection was probably lost"
    self._report(f"{event}; training continues from step {max(step, 0)} on {len(remaining)} {total} processes")
    sources = keepers.get(step, {})
    self._next = replace(
      self._next, ranks=tuple(sorted(remaining)), survivors=tuple(sorted(sources)), step=step, keepers=sources
    )


def _names(ranks: Collection[int]) -> str:
  return f"process{'es' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"


def _may_follow_from_loss(error: Exception) -> bool:
  """Return whether an error may be a consequence of another process's death or a lost connection."""
  cause = getattr(error, "cause", error)
  return (isinstance(cause, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(cause)) or "Gloo" in str(cause)
