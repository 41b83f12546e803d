"""The metrics of a run: tests of the consensus model, the gradient noise scale, and the rows of metrics.jsonl.

The gradient noise scale of the consensus model: the batch beyond which more examples, or workers, pay little.
McCandlish, Kaplan, Amodei et al. 2018, arXiv 1812.06162. Of k gradients g_j, each of b examples drawn with replacement,
with the mean gbar:
tr(Sigma) ~ S = b / (k - 1) sum_j |g_j - gbar|^2,   |G|^2 ~ |gbar|^2 - S / (k b),   B_simple = tr(Sigma) / |G|^2.
These are the paper's unbiased estimates from batches of b and of k b examples, S = (|g|^2 - |gbar|^2) / (1/b - 1/(k b))
and |G|^2 = (k b |gbar|^2 - b |g|^2) / (k b - b), |g|^2 = (1/k) sum_j |g_j|^2, without their difference of two squares.
A ratio of them is biased, so both are averaged over the last evaluations first.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Model, Source, Tree
from ddl.config.experiment import noise_key
from ddl.engine.consensus import Consensus, NotFinite, host_distance, unstacked
from ddl.engine.local_step import gradient_of
from ddl.engine.placement import gather, is_split, local, place_like
from ddl.hosts import wait_on_cpu
from ddl.run.batch import Batch, LoopHook, LoopStep
from ddl.run.build import Components
from ddl.run.folder import text_of

BATCH = 512  # examples
CACHED = 256 * 2**20  # bytes; a smaller test set stays on the device
REESTIMATED = 20  # training batches that re-estimate batch-norm statistics


class Evaluator:
  """Mean metrics over all examples of a source, computed on one device, or on all where the model is split."""

  def __init__(self, model: Model, source: Source):
    """Compiles when first called; `noise` is the model's `NoiseEstimator`, beside its metrics."""
    self._source, self.noise = source, NoiseEstimator(model)
    metrics = _metrics_of(model)
    self._metrics, self._together = jax.jit(metrics), jax.jit(partial(_together, metrics))
    self._train = jax.jit(lambda params, extra, batch: model.loss(params, extra, batch, jax.random.key(0))[1])
    self._batches: list[Any] | None = None

  def __call__(self, models: Sequence[Consensus]) -> list[dict[str, float]]:
    """Return {"loss": mean, "accuracy": mean where there is one} of each model; one program tests them all."""
    trees = local([model[:2] for model in models])
    params = trees[0][0]
    sums: list[tuple[int, Tree]] = []
    for batch in self._all(params):
      figures = self._together(trees, batch) if len(trees) > 1 else [self._metrics(*trees[0], batch)]
      sums.append((len(jax.tree.leaves(batch)[0]), wait_on_cpu(figures) if is_split(params) else figures))
    totals: list[dict[str, float]] = [{} for _ in trees]
    for size, batch_figures in gather(sums):
      for total, figures in zip(totals, batch_figures, strict=True):
        for name, values in figures.items():
          total[name] = total.get(name, 0.0) + float(np.mean(values, dtype=np.float64)) * size
    return [{name: x / self._source.size for name, x in total.items()} for total in totals]

  def reestimated(self, model: Consensus, batches: Sequence[dict[str, np.ndarray]]) -> Consensus:
    """Return the model with the batch statistics of these."""
    params, extra = local(model[:2])
    for batch in batches:
      extra = self._train(params, extra, place_like(batch, params))
    return model._replace(extra=extra)

  def _all(self, params: Tree) -> Any:
    """Return the batches, on the devices of the parameters, which must not change between calls."""
    if self._batches is not None:
      return self._batches
    starts = range(0, self._source.size, BATCH)
    batches = (self._source.take(np.arange(s, min(s + BATCH, self._source.size))) for s in starts)
    first = self._source.take(np.arange(1))
    if sum(x.nbytes for x in first.values()) * self._source.size > CACHED:
      return (place_like(batch, params) for batch in batches)
    self._batches = [place_like(batch, params) for batch in batches]
    return self._batches


def judged_by(asked: str, model: Model, source: Source, task: str) -> str:
  """Return the metric that runs are compared by, "accuracy", "loss" or "perplexity"; nothing is compiled or computed.

  asked: one of them, or "" for the accuracy where there is one, else the loss. ValueError for one that is not measured.
  """
  figures = jax.eval_shape(lambda: _metrics_of(model)(*model.init(jax.random.key(0)), source.take(np.arange(1))))
  known = ["accuracy"] * ("accuracy" in figures) + ["loss"] + ["perplexity"] * (task == "language")
  if asked and asked not in known:
    raise ValueError(f"config.compare.metric is {asked!r}; of this model and data it can be {', '.join(known)}")
  return asked or known[0]


def _together(metrics: Any, models: Sequence[Tree], batch: Any) -> list[dict[str, jax.Array]]:
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
  figures = jax.vmap(lambda model: metrics(*model, batch))(stacked)
  return unstacked(figures)


def _metrics_of(model: Model) -> Any:
  """Return the function that computes a model's metrics, by default only its loss."""

  def metrics(params: Tree, extra: Tree, batch: Any) -> dict[str, jax.Array]:
    return {"loss": jnp.atleast_1d(model.loss(params, extra, batch, jax.random.key(0))[0])}

  return model.metrics or metrics


WINDOW = 5  # evaluations, whose means are divided: gradients shrink too fast in training for a longer memory
NORM2, TRACE, SCALE = "grad_norm2", "grad_noise", "noise_scale"  # of a line of metrics


class NoiseEstimator:
  """Estimates of |G|^2 and tr(Sigma) of one model, on one device."""

  def __init__(self, model: Model):
    """Compiles when first called."""
    self._add, self._square = jax.jit(_accumulate(model)), jax.jit(_square)

  def __call__(
    self, consensus: Consensus, batches: Iterable[Mapping[str, np.ndarray]], key: jax.Array
  ) -> dict[str, float]:
    """Return {"grad_norm2": |G|^2, "grad_noise": tr(Sigma) of one example}, from two or more batches of one size."""
    params, extra = local((consensus.params, consensus.extra))
    carry, count, size = (jax.tree.map(_zeros, params), jnp.zeros(())), 0, 0
    for count, batch in enumerate(batches, 1):
      size, batch_key = len(jax.tree.leaves(batch)[0]), jax.random.fold_in(key, count)
      carry = self._add(carry, float(count), params, extra, place_like(batch, params), batch_key)
    mean, spread = carry
    trace = size * float(spread) / (count - 1)  # S
    return {NORM2: float(self._square(mean)) - trace / (count * size), TRACE: trace}


def draw(size: int, *, batches: int, batch: int, seed: int, step: int) -> np.ndarray:
  """Draw the examples of an evaluation after this step: [batches, batch], with replacement from 0..size-1."""
  generator = np.random.default_rng(np.random.SeedSequence((seed, step, batches, batch)))
  return generator.integers(size, size=(batches, batch))


def recent(before: Sequence[Sequence[float]], line: Mapping[str, float]) -> list[list[float]]:
  """Return (|G|^2, tr(Sigma)) of the last evaluations and of this line; a line without the figures changes nothing."""
  return [*map(list, before), *([[line[NORM2], line[TRACE]]] if NORM2 in line else [])][-WINDOW:]


def ratio(sums: Sequence[Sequence[float]]) -> dict[str, float]:
  """Return {"noise_scale": B_simple in examples} of the sums; {} if |G|^2 is not above zero."""
  norm2, trace = np.sum(sums, axis=0).tolist() if sums else (0.0, 0.0)
  return {SCALE: trace / norm2} if norm2 > 0 else {}


def _accumulate(model: Model) -> Any:
  """Add a gradient to (mean, sum_j |g_j - mean|^2), number, ... by Welford's rule."""
  gradient = gradient_of(model)

  def add(carry: Any, count: Any, params: Tree, extra: Tree, batch: Any, key: Any) -> Any:
    mean, spread = carry
    grads = gradient(params, extra, batch, key)[1]
    before = jax.tree.map(lambda g, m: g.astype(m.dtype) - m, grads, mean)
    mean = jax.tree.map(lambda m, d: m + d / jnp.asarray(count, m.dtype), mean, before)
    after = jax.tree.map(lambda g, m: g.astype(m.dtype) - m, grads, mean)
    return mean, spread + _total(jax.tree.map(lambda d, e: jnp.sum(d * e), before, after))

  return add


def _square(tree: Tree) -> jax.Array:
  return _total(jax.tree.map(lambda x: jnp.sum(jnp.square(x)), tree))


def _total(terms: Tree) -> jax.Array:
  return sum((x.astype(jnp.result_type(float)) for x in jax.tree.leaves(terms)), start=jnp.zeros(()))


def _zeros(x: jax.Array) -> jax.Array:
  return jnp.zeros(x.shape, x.dtype if jnp.finfo(x.dtype).bits >= 32 else jnp.float32)


MOST_LOSS = 700.0  # beyond which its exponential is no float


def with_perplexity(tested: dict[str, float], task: str) -> dict[str, float]:
  """Return the figures of a test; for language with "perplexity" = exp(mean loss per token) if that is finite."""
  if task != "language" or not tested["loss"] < MOST_LOSS:
    return tested
  return {"loss": tested["loss"], "perplexity": math.exp(tested["loss"])} | tested


class Losses(LoopHook):
  """A hook of the loop that adds up the losses of each run, and finds those that are not finite."""

  def __call__(self, state: LoopStep) -> None:
    """Add the losses of a call."""
    state.batch.for_active(partial(self._add, state))

  def _add(self, state: LoopStep, run: int) -> None:
    figures, losses = state.batch.figures[run], state.losses[state.batch.lanes[run]].astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
      before = figures["step"]
      exact = losses.size == state.step - before  # losses of asynchronous workers are not one per step
      where = f"at step {before + bad[0] + 1}" if exact else f"between step {before + 1} and step {state.step}"
      raise NotFinite(f"its loss is {losses[bad[0]]} {where}")
    figures |= {"step": state.step, "nbytes": state.nbytes, "seconds": state.seconds}
    figures["loss_sum"] += math.fsum(losses)
    figures["loss_count"] += losses.size


class Evaluation(LoopHook):
  """A hook of the loop that tests the consensus models and writes a line of metrics for each run."""

  def __init__(self, batch: Batch, evaluator: Evaluator, batch_stats: str = "mean"):
    """batch_stats: "reestimate" for batch statistics from training batches, "mean" for the workers' mean."""
    self._evaluator, self._reestimate = evaluator, batch_stats == "reestimate"
    self._every, self._steps = batch.experiment.eval_every, batch.experiment.steps
    if self._reestimate and any(run.components.data.train.stream for run in batch.runs):
      raise ValueError("batch_stats must be mean for a stream of training examples, got reestimate.")

  def due(self, first: int, step: int) -> bool:
    """Return whether step is a multiple of config.eval_every, or the last one."""
    del first
    return step % self._every == 0 or step == self._steps

  def __call__(self, state: LoopStep) -> None:
    """Evaluate where that is due."""
    if state.carry is None or not self.due(state.first, state.step):
      return
    batch, tested = state.batch, [*state.models]
    if self._reestimate:
      for run in batch.active:
        lane = batch.lanes[run]
        batches = _training_batches(batch.runs[run].components, state.step)
        tested[lane] = self._evaluator.reestimated(tested[lane], batches)
    figures = self._evaluator(tested)
    batch.for_active(lambda run: self._write(state, run, figures[batch.lanes[run]]))

  def _write(self, state: LoopStep, run: int, tested: dict[str, float]) -> None:
    """Write the line of a run. Raises NotFinite if a value is not finite.

    Reports read the columns in `ddl.report.reader.COLUMNS` and drop all others.
    """
    (components, folder, clock, *_), figures = state.batch.runs[run], state.batch.figures[run]
    model, step, experiment = state.models[state.batch.lanes[run]], state.step, components.experiment
    examples = clock.worker_steps(step) * experiment.batch
    line = {"step": step, "examples": examples, "epoch": examples / components.data.train.size}
    if figures["loss_count"]:
      line["train_loss"] = figures["loss_sum"] / figures["loss_count"]
    tested = with_perplexity(tested, components.data.meta.get("task", ""))
    line |= {f"test_{name}": value for name, value in tested.items()}
    if (distance := host_distance(model)) is not None:
      line["distance"] = distance
    if experiment.noise_batches:
      noise = _noise(self._evaluator.noise, components, model, step)
      figures["noise"] = recent(figures["noise"], noise)
      line |= noise | ratio(figures["noise"])
    line |= {"bytes_sent": state.nbytes, "seconds": round(state.seconds, 6)} | clock.columns(step)
    bad = [name for name, value in line.items() if not math.isfinite(value)]
    if bad:
      raise NotFinite(f"its {bad[0]} is {line[bad[0]]} after step {step}")
    figures |= {"loss_sum": 0.0, "loss_count": 0, "lines": figures["lines"] + 1, "last": line}
    if figures["crc"] is not None:
      figures["crc"] = zlib.crc32(text_of(line).encode(), figures["crc"])
    folder.line(line)


def _noise(estimator: NoiseEstimator, components: Components, model: Consensus, step: int) -> dict[str, float]:
  """Estimate the gradient noise from fresh training batches, the same whenever this step is evaluated."""
  experiment, source = components.experiment, components.data.train
  drawn = draw(source.size, batches=experiment.noise_batches, batch=experiment.batch, seed=experiment.seed, step=step)
  return estimator(model, map(source.take, drawn), jax.random.fold_in(noise_key(experiment.seed), step))


def _training_batches(components: Components, step: int) -> list[dict[str, np.ndarray]]:
  """Return batches of worker 0, for the statistics of the consensus model."""
  batches = components.feed([0])(step, REESTIMATED)
  return [{name: x[0, i] for name, x in batches.items()} for i in range(REESTIMATED)]
