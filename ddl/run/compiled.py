"""A run as compiled calls: of `Trainer` for a collective algorithm, of `Simulator` for a server's in virtual time."""

import collections
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.config.experiment import initial_key, training_key
from ddl.data.stream import StreamFeed
from ddl.elastic import Elastic
from ddl.engine.consensus import Consensus
from ddl.engine.placement import shardings
from ddl.engine.trainer import Trainer
from ddl.engine.workers import placed
from ddl.events.presence import Presence
from ddl.hosts import Vote, exchange
from ddl.run.build import Components
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.elastic import Generation
from ddl.run.folder import RunFolder
from ddl.run.progress import bar
from ddl.run.runner import Report, StopRequest
from ddl.run.trainers import AnyTrainer


class CompiledRun:
  """A run of a trainer, or several together that differ in their seeds; the compiled calls serve further ones."""

  def __init__(
    self, runs: Sequence[Components], trainer: AnyTrainer, *, every: int = 0, keep_final: bool = True,
    lanes: Sequence[int] = (), width: int = 1, relay: bool = False, generation: Generation | None = None,
  ):  # fmt: skip
    """every: steps between checkpoints, 0: none on the way; keep_final: save the last step too.

    relay: a collective algorithm's checkpoint of another layout is opened too, though not bit for bit.

    width: of a program for several runs; lanes: those of these runs. In the lanes of runs that are not made any more
    the first one is made again: a run has the same bits whatever the others are, but not with another width or lane.

    generation: of processes that come and go, whose memory is kept up to date.
    """
    self.trainer: Any = trainer  # of either kind, as are its carries
    self._runs, self._every, self._keep_final = runs, every, keep_final
    self.lanes, self._alone, self._relay = lanes or (0,), width == 1, relay and isinstance(trainer, Trainer)
    self._generation = generation
    self._made = [self.lanes.index(lane) if lane in self.lanes else 0 for lane in range(width)]  # by lane
    self._checkpoints: RunCheckpoints | None = None
    self._carry: Any = None
    self._streams: list[StreamFeed] = []  # of each run, if they are streams
    self._places: list[Any] = []  # (step, states) of theirs in a checkpoint
    self.layout: dict[str, Any] = {
      "devices": trainer.workers.devices, "execution": list(trainer.execution), "processes": jax.process_count()
    }  # fmt: skip
    if generation:  # which others may follow
      self.layout |= {"devices": 0, "processes": generation.processes, "come and go": True}
    if trainer.workers.members > 1:
      self.layout |= {"members": trainer.workers.members, "sharding": self.trainer.placement.sharding}

  @property
  def presence(self) -> Presence | None:
    """See `Runner`."""
    return self.trainer.presence if isinstance(self.trainer, Elastic) else None

  def warm_up(self, label: str) -> None:
    """Make the first calls and forget them: the first time is slower, and seconds are to be compared."""
    experiment = self._runs[0].experiment
    calls = self.trainer.plan(0, experiment.steps, experiment.eval_every)  # of the whole run: see `open`
    calls = [call for call in calls if call.end <= 2 * experiment.eval_every]
    with bar(f"{label}: compiling", len(calls)) as shown:
      for _, carry, _ in self.trainer.run(self._start(), calls, self._feed(), self._key()):
        jax.block_until_ready(carry)
        shown.update()
    self._close_streams()

  def open(self, folders: Sequence[RunFolder], resume: bool) -> list[dict[str, Any]] | None:
    """See `Runner`. ValueError for a damaged checkpoint or one of another layout, or a model that does not fit."""
    experiment = self._runs[0].experiment
    kept = self._generation.kept(self.trainer, initial_key(experiment.seed)) if self._generation else None
    self._carry = kept.held if kept else self._start()
    self._checkpoints = RunCheckpoints(folders, self.layout, self._relay)
    if resume or self._every or self._keep_final:
      self._checkpoints.open()
    figures, first = None, 0  # calls are planned for the whole run, as that decides which are alike
    before = kept.presence if kept else None
    if kept:
      figures, self._places = [kept.figures], [(kept.figures["step"], kept.streams)]
    elif resume and self._checkpoints.steps():  # else new, or stopped before its first checkpoint
      if self._generation:
        before = self.trainer.presence = self._generation.before(folders[0])
      if found := self._checkpoints.newest(self._shapes_by_step()):
        figures, first = found.figures, found.step if found.relaid else 0
        self._places = [(found.step, each.pop("streams", {})) for each in figures]
        at = (found.step,) if isinstance(self.trainer, Elastic) else ()
        self._carry = self._joined([self.trainer.restored(each, *at) for each in found.carries])
      else:
        self._carry = self._start()
    if self._generation:
      if before and figures:
        self.trainer.presence = self._generation.gone_on(before, figures[0]["step"])
      self._generation.note(folders[0], self.trainer.presence)
    self._calls: list[Any] = self.trainer.plan(first, experiment.steps, experiment.eval_every)
    return figures

  def run(
    self, figures: Sequence[dict[str, Any]], report: Callable[[Report], Sequence[bool]], asked: StopRequest
  ) -> int | None:
    """See `Runner`. One call stays in flight while the losses of the one before are read."""
    experiment, trainer = self._runs[0].experiment, self.trainer
    if not figures[0]["lines"]:
      report(Report(0, np.zeros((len(self._made), 0)), 0.0, 0.0, self._models, line=True))
    calls = [call for call in self._calls if call.first >= figures[0]["step"]]
    clock, vote = Clock(trainer, sum(each["seconds"] for each in figures)), Vote()
    nbytes, stop = figures[0]["nbytes"], False
    pending = collections.deque[tuple[Any, jax.Array, Any]]()
    clock.go()
    for call, carry, losses in trainer.run(self._carry, calls, self._feed(), self._key()):
      self._carry = carry
      pending.append((call, losses, vote.cast(asked.number is not None, losses)))
      line, save = call.end == experiment.steps or call.end % experiment.eval_every == 0, self._save_due(call)
      keep = self._generation is not None and call.end % self._generation.round_steps == 0
      while len(pending) > (0 if line or save or stop or keep else 1):
        done, losses, ballot = pending.popleft()
        values = np.atleast_2d(trainer.losses(done, losses))
        nbytes += trainer.nbytes(done)
        stop |= vote.count(ballot)
        rest = bool(pending) or not (line or save or stop)
        if not rest:
          clock.stop()
        each = Report(done.end, values, nbytes, clock.seconds / len(self._runs))
        goes_on = report(each if rest else each._replace(models=self._models, line=line, save=save or stop))
        if rest:
          continue
        if save or stop:
          self._save(figures, goes_on)
        clock.go()
      if keep and self._generation:
        states = self._streams[0].states() if self._streams else {}
        self._generation.keep(call.end, self.trainer, self._carry, figures[0], states)
      if stop:
        return call.end
    return None

  def kept(self) -> str:
    """See `Runner`."""
    steps = self._checkpoints.steps() if self._checkpoints else []
    return f"the last good checkpoint, of step {steps[0]}, is kept" if steps else "there was no checkpoint yet"

  def close(self) -> None:
    """Wait for what is being saved."""
    self._close_streams()
    if self._checkpoints:
      self._checkpoints.close()

  def _close_streams(self) -> None:
    for each in self._streams:
      each.close()
    self._streams = []

  def _start(self) -> Any:
    return self._joined([self.trainer.start(initial_key(each.experiment.seed)) for each in self._runs])

  def _shapes_by_step(self) -> Callable[[int], Any]:
    """Return a run's saved carry, as shapes, after so many steps. Drops the carry of the start."""

    def shapes(carry: Any) -> Any:
      saved = self.trainer.saved(carry)
      return placed(saved, shardings(saved))

    first, self._carry = shapes(self._carry_of(0)), None
    if not isinstance(self.trainer, Elastic):
      return lambda step: first
    key = initial_key(self._runs[0].experiment.seed)
    return lambda step: shapes(self.trainer.start(key, step))

  def _joined(self, carries: list[Any]) -> Any:
    return carries[0] if self._alone else self.trainer.join([carries[run] for run in self._made])

  def _feed(self) -> Any:
    """The batches of the run; of several [workers, runs, ...]."""
    fed = [*self.trainer.fed] if isinstance(self.trainer, Elastic) else self.trainer.workers.local
    feeds = [each.training_feed(fed) for each in self._runs]
    self._streams = [each for each in feeds if isinstance(each, StreamFeed)]
    for each, place in zip(self._streams, self._places, strict=False):  # none at step 0
      each.restore(*place, begin=self._generation is not None)
    if self._alone:
      return feeds[0]

    def feed(first: int, steps: int) -> dict[str, np.ndarray]:
      batches = [each(first, steps) for each in feeds]
      return {name: np.stack([batches[run][name] for run in self._made], axis=1) for name in batches[0]}

    return feed

  def _key(self) -> jax.Array:
    keys = [training_key(each.experiment.seed) for each in self._runs]
    return keys[0] if self._alone else jnp.stack([keys[run] for run in self._made])

  def _carry_of(self, run: int) -> Any:
    return self._carry if self._alone else self.trainer.part(self._carry, self.lanes[run])

  def _save(self, figures: Sequence[dict[str, Any]], goes_on: Sequence[bool]) -> None:
    assert self._checkpoints
    self._checkpoints.open()
    for run, goes in enumerate(goes_on):
      if goes:
        figure = dict(figures[run])
        if self._streams:
          said = exchange(json.dumps(self._streams[run].states()))  # each process has its own workers'
          figure["streams"] = {worker: state for text in said for worker, state in json.loads(text).items()}
        # One after another: over several processes, those that orbax writes at the same time take each other's files.
        self._checkpoints.save(run, self.trainer.saved(self._carry_of(run)), figure, wait=not self._alone)

  def _models(self) -> list[Consensus]:
    return [self.trainer.consensus(self._carry)] if self._alone else self.trainer.consensuses(self._carry)

  def _save_due(self, call: Any) -> bool:
    at_end = self._keep_final and call.end == self._runs[0].experiment.steps
    return at_end or bool(self._every and call.end // self._every > call.first // self._every)


class Clock:
  """Seconds of training: evaluation, saving and compilation do not count."""

  def __init__(self, trainer: AnyTrainer, seconds: float):
    """Stopped, at `seconds`."""
    self.trainer, self.seconds = trainer, seconds

  def go(self) -> None:
    """Start."""
    self._since, self._compiled = time.perf_counter(), self.trainer.compile_seconds

  def stop(self) -> None:
    """Stop; call it once the devices are done."""
    self.seconds += time.perf_counter() - self._since - (self.trainer.compile_seconds - self._compiled)
