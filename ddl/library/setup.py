"""The objects of a run for a custom training loop: data order, keys, initial parameters, optimizer and schedule."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.api import Algorithm, Data, Model, ServerAlgorithm, Tree
from ddl.config.experiment import Experiment, initial_key, training_key
from ddl.engine.keys import algorithm_key, step_key
from ddl.engine.trainer import Feed
from ddl.ranges import check, integers
from ddl.run.build import Components


@dataclass(frozen=True, repr=False, eq=False)
class Setup:
  """The objects of one run, from `ddl.build`.

  With a collective algorithm, all workers are at the same step. With a server algorithm, each worker counts its own
  steps.
  """

  components: Components
  _feeds: dict[int | None, Feed] = field(default_factory=dict, init=False)  # by `worker`; each has its own position

  def __repr__(self) -> str:
    """Return the names of algorithm, model and data, the number of workers and the seed."""
    experiment = self.experiment
    names = f"{experiment.label}, {experiment.model.short_name} on {experiment.data.short_name}"
    return f"Setup({names}, workers={experiment.workers}, seed={experiment.seed})"

  @property
  def experiment(self) -> Experiment:
    """The experiment, with all defaults filled in."""
    return self.components.experiment

  @property
  def model(self) -> Model:
    """The model, with its functions `init`, `loss` and `metrics`."""
    return self.components.model

  @property
  def data(self) -> Data:
    """The data set."""
    return self.components.data

  @property
  def algorithm(self) -> Algorithm | ServerAlgorithm:
    """The algorithm with its inner optimizer. If collective, its `init` ignores the key argument and uses the run's."""
    algorithm, key = self.components.algorithm, initial_key(self.experiment.seed)
    if isinstance(algorithm, ServerAlgorithm):
      return algorithm
    return algorithm._replace(init=lambda group, params, _: algorithm.init(group, params, algorithm_key(key)))

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """The inner optimizer, with its learning-rate schedule and weight-decay mask."""
    return self.experiment.make_optimizer()

  @property
  def schedule(self) -> optax.Schedule:
    """The learning-rate schedule, a function of the step."""
    rate = self.experiment.make_schedule()
    return rate if callable(rate) else optax.constant_schedule(rate)

  def init(self) -> tuple[Tree, Tree]:
    """Return the initial (params, extra), the same for all workers."""
    return jax.jit(self.model.init)(initial_key(self.experiment.seed))

  def batch(self, step: int, worker: int | None = None) -> dict[str, np.ndarray]:
    """Return the training batch of a step: [batch, ...] for one worker, or [workers, batch, ...] if `worker` is None.

    For a streamed training set, call it with the steps 0, 1, 2, ... for each value of `worker`.
    """
    count = self.experiment.workers
    check("step", step, integers(0))
    check("worker", 0 if worker is None else worker, integers(0, count - 1))
    if worker not in self._feeds:
      self._feeds[worker] = self.components.feed([*range(count)] if worker is None else [worker])
    examples = self._feeds[worker](step, 1)
    return {name: x[:, 0] if worker is None else x[0, 0] for name, x in examples.items()}

  def key(self, step: Any, worker: Any = None) -> jax.Array:
    """Return a worker's key for `model.loss` in a step, or the keys of all workers, [workers], if `worker` is None.

    Both arguments may be traced values, such as the result of `jax.lax.axis_index`.
    """
    key = training_key(self.experiment.seed)
    if worker is not None:
      return step_key(key, worker, step)
    return jax.vmap(lambda worker: step_key(key, worker, step))(jnp.arange(self.experiment.workers))
