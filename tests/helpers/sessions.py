"""Runs of `ddl.run.loop` in the process of the test, which can interrupt them at a chosen call."""

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from helpers.commands import metrics

from ddl.api import Model
from ddl.config import default_experiment
from ddl.config.experiment import Experiment, initial_key
from ddl.engine.checkpoint import Checkpoints
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.hosts import Vote
from ddl.models.modules import from_flax
from ddl.run import loop
from ddl.run.batch import Batch, BatchRun, Diverged
from ddl.run.build import build
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.folder import RunFolder
from ddl.run.hooks import SaveModels, TensorBoard
from ddl.run.metrics import Evaluation, Evaluator, Losses


def config(**sections: Any) -> Experiment:
  """Return a small experiment on the digits. sections: setting=value, or section={key: value}."""
  small: dict[str, Any] = {
    "model": {"hidden": (16,)}, "batch": 8, "steps": 40, "eval_every": 10,
    "optimizer": {"momentum": 0.9, "learning_rate": 0.05},
  }  # fmt: skip
  for name, value in sections.items():
    small[name] = small.get(name, {}) | value if isinstance(value, dict) else value
  return default_experiment(**small)


class Untimed:
  """A clock of runs without virtual time."""

  def __init__(self, workers: int):
    self._workers = workers

  def worker_steps(self, step: int) -> int:
    return step * self._workers

  def columns(self, step: int) -> dict[str, float]:
    return {}

  def keep(self, folder: RunFolder) -> None:
    pass

  def save(self, folder: Path) -> None:
    pass


def run_batch(
  batch: Batch, store: Any, evaluator: Evaluator, *, batch_stats: str = "mean", label: str = "",
  keep_model: bool = False,
) -> list[Any]:  # fmt: skip
  """Run a batch with the hooks of `ddl.train`."""
  hooks: list[Any] = [Losses(), Evaluation(batch, evaluator, batch_stats), TensorBoard()]
  hooks += [SaveModels(batch, store.due)] if keep_model else []
  return loop.run(batch, store, hooks, label, {})


class Run:
  """An experiment that is compiled once and can run in several folders."""

  def __init__(
    self, experiment: Experiment, *, devices: int = 2, how: ExecutionConfig | None = None, model: Any = None,
    members: int = 1,
  ):  # fmt: skip
    """Build the trainer. experiment: see `config`; model: replaces the experiment's model."""
    self.experiment = build(experiment)
    if model:
      self.experiment = self.experiment._replace(model=model)
    workers = make_workers(experiment.workers, devices, members)
    self.trainer = CompiledTrainer(
      self.experiment.algorithm, self.experiment.model, workers, how or ExecutionConfig("vmap", "scan", 64)
    )
    self.evaluator = Evaluator(self.experiment.model, self.experiment.data.test)
    self.steps, self.clock = experiment.steps, Untimed(experiment.workers)

  def __call__(
    self, path: Path, *, checkpoint_every: int = 0, keep_final: bool = True, resume: bool = False, **options: Any
  ) -> dict[str, Any]:
    """Run or resume the experiment in a folder; return the last line of metrics."""
    store = RunCheckpoints(self.steps, checkpoint_every, keep_final)
    (outcome,) = run_batch(
      Batch([BatchRun(self.experiment, RunFolder(path), self.clock, resume)], self.trainer),
      store, self.evaluator, **options,
    )  # fmt: skip
    if isinstance(outcome, Diverged):
      raise outcome
    return outcome

  def together(
    self, path: Path, seeds: dict[int, int], width: int = 3, *, resume: bool = False, **options: Any
  ) -> list[dict[str, Any] | Diverged]:
    """Run or resume the experiment with several seeds in one program. seeds: seed -> lane."""
    runs = []
    for seed in seeds:
      created = build(replace(self.experiment.experiment, seed=seed))._replace(model=self.experiment.model)
      folder = RunFolder(path / f"seed-{seed}")
      runs.append(BatchRun(created, folder, self.clock, resume and folder.begun))
    batch = Batch(runs, self.trainer, list(seeds.values()), width)
    return run_batch(batch, RunCheckpoints(self.steps), self.evaluator, **options)

  def outcome(self, path: Path) -> tuple[list[dict[str, float]], list[bytes]]:
    """Return the metrics and the bytes of the last checkpoint's carry."""
    checkpoints = Checkpoints(path / "checkpoints")
    assert checkpoints.steps()[0] == self.steps
    start = self.trainer.start(initial_key(0))
    carry = self.trainer.restored(checkpoints.carry(self.steps, self.trainer.saved(start)))
    checkpoints.close()
    return metrics(path), [np.asarray(x).tobytes() for x in jax.tree.leaves(carry)]


@contextlib.contextmanager
def at_call(monkeypatch: Any, number: int, action: Any):
  """Call `action` while call `number` of a run is in flight."""

  class CountingVote(Vote):
    def __init__(self) -> None:
      super().__init__()
      self.calls = 0

    def cast(self, stop: bool, after: Any = None) -> object:
      self.calls += 1
      if self.calls == number:
        action()
      return super().cast(stop, after)

  with monkeypatch.context() as patch:
    patch.setattr(loop, "Vote", CountingVote)
    yield


def send(number: int) -> Any:
  """Return a function that sends a signal to this process."""
  return lambda: os.kill(os.getpid(), number)


def snapshot(folder: Path, to: Path) -> None:
  """Copy a folder as a crash would leave it; checkpoints first, as metrics may only be newer than them."""
  with contextlib.suppress(shutil.Error, FileNotFoundError):  # a checkpoint may be renamed at the same time
    shutil.copytree(folder / "checkpoints", to / "checkpoints")
  for file in folder.iterdir():
    if file.is_file():
      shutil.copy(file, to / file.name)


class _Normalized(nn.Module):
  @nn.compact
  def __call__(self, x, train):
    x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Dense(16)(x.reshape(x.shape[0], -1))))
    return nn.Dense(10)(x)


def normalized() -> Model:
  """Return a perceptron with batch normalization for the digits."""
  return from_flax(_Normalized(), {"task": "classification", "shape": (8, 8, 1), "num_outputs": 10}, dense=True)
