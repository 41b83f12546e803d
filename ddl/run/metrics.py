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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Model, Source, Tree
from ddl.config.experiment import noise_key
from ddl.engine.consensus import Consensus, NotFinite, unstacked
from ddl.engine.local_step import gradient_of
from ddl.engine.placement import beside, gather, is_split, local
from ddl.events.presence import Presence
from ddl.hosts import in_order
from ddl.run.build import Components
from ddl.run.folder import RunFolder, text_of
from ddl.run.runner import Report

BATCH = 512  # examples
CACHED = 256 * 2**20  # bytes; a smaller test set stays on the device
REESTIMATED = 20  # training batches that re-estimate batch-norm statistics


class Evaluator:
  """Mean metrics over all examples of a source, computed on one device, or on all where the model is split."""

  def __init__(self, model: Model, source: Source):
    """Compiles when first called; `noise` is the model's `NoiseEstimator`, beside its metrics."""
    self._source, self.noise = source, NoiseEstimator(model)
    metrics = model.metrics or _loss_as_metric(model)
    self._metrics, self._together = jax.jit(metrics), jax.jit(partial(_together, metrics))
    self._train = jax.jit(lambda params, extra, batch: model.loss(params, extra, batch, jax.random.key(0))[1])
    self._batches: list[Any] | None = None

  def __call__(self, models: Sequence[Consensus]) -> list[dict[str, float]]:
    """Return {"loss": mean, "accuracy": mean where there is one} of each model; one program tests them all."""
    of = local([each[:2] for each in models])
    params, alone = of[0][0], len(of) == 1
    waits = in_order if is_split(params) else lambda figures: figures
    sums: list[tuple[int, Tree]] = [
      (len(jax.tree.leaves(batch)[0]), waits([self._metrics(*of[0], batch)] if alone else self._together(of, batch)))
      for batch in self._all(params)
    ]
    totals: list[dict[str, float]] = [{} for _ in of]
    for size, each in gather(sums):
      for total, figures in zip(totals, each, strict=True):
        for name, values in figures.items():
          total[name] = total.get(name, 0.0) + float(np.mean(values, dtype=np.float64)) * size
    return [{name: x / self._source.size for name, x in total.items()} for total in totals]

  def reestimated(self, model: Consensus, batches: Sequence[dict[str, np.ndarray]]) -> Consensus:
    """Return the model with the batch statistics of these."""
    params, extra = local(model[:2])
    for batch in batches:
      extra = self._train(params, extra, beside(batch, params))
    return model._replace(extra=extra)

  def _all(self, params: Tree) -> Any:
    """The batches; where the parameters are has to be the same each time."""
    if self._batches is not None:
      return self._batches
    starts = range(0, self._source.size, BATCH)
    made = (self._source.take(np.arange(s, min(s + BATCH, self._source.size))) for s in starts)
    first = self._source.take(np.arange(1))
    if sum(x.nbytes for x in first.values()) * self._source.size > CACHED:
      return (beside(batch, params) for batch in made)
    self._batches = [beside(batch, params) for batch in made]
    return self._batches


def judged_by(asked: str, model: Model, source: Source, task: str) -> str:
  """Return the metric that runs are compared by, "accuracy", "loss" or "perplexity"; nothing is compiled or computed.

  asked: one of them, or "" for the accuracy where there is one, else the loss. ValueError for one that is not measured.
  """
  known = ["accuracy"] * _has_accuracy(model, source) + ["loss"] + ["perplexity"] * (task == "language")
  if asked and asked not in known:
    raise ValueError(f"config.compare.metric is {asked!r}; of this model and data it can be {', '.join(known)}")
  return asked or known[0]


def _has_accuracy(model: Model, source: Source) -> bool:

  def metrics() -> Tree:
    return (model.metrics or _loss_as_metric(model))(*model.init(jax.random.key(0)), source.take(np.arange(1)))

  return "accuracy" in jax.eval_shape(metrics)


def _together(metrics: Any, models: Sequence[Tree], batch: Any) -> list[dict[str, jax.Array]]:
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
  figures = jax.vmap(lambda model: metrics(*model, batch))(stacked)
  return unstacked(figures)


def _loss_as_metric(model: Model) -> Any:
  def metrics(params: Tree, extra: Tree, batch: Any) -> dict[str, jax.Array]:
    return {"loss": jnp.atleast_1d(model.loss(params, extra, batch, jax.random.key(0))[0])}

  return metrics


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
    """{"grad_norm2": |G|^2, "grad_noise": tr(Sigma) of one example}, from at least two batches of one size."""
    params, extra = local((consensus.params, consensus.extra))
    mean, spread, count, size = jax.tree.map(_zeros, params), jnp.zeros(()), 0, 0
    for count, batch in enumerate(batches, 1):
      size = len(jax.tree.leaves(batch)[0])
      mean, spread = self._add(
        (mean, spread), float(count), params, extra, beside(batch, params), jax.random.fold_in(key, count)
      )
    trace = size * float(spread) / (count - 1)  # S
    return {NORM2: float(self._square(mean)) - trace / (count * size), TRACE: trace}


def draw(size: int, *, batches: int, batch: int, seed: int, step: int) -> np.ndarray:
  """The examples of an evaluation after this step: [batches, batch], drawn with replacement from 0..size-1."""
  return np.random.default_rng(np.random.SeedSequence((seed, step, batches, batch))).integers(
    size, size=(batches, batch)
  )


def key_of(seed: int, step: int) -> jax.Array:
  """Key of the losses of that evaluation."""
  return jax.random.fold_in(noise_key(seed), step)


def recent(before: Sequence[Sequence[float]], line: Mapping[str, float]) -> list[list[float]]:
  """(|G|^2, tr(Sigma)) of the last evaluations with this line's; one without the figures changes nothing."""
  return [*map(list, before), *([[line[NORM2], line[TRACE]]] if NORM2 in line else [])][-WINDOW:]


def ratio(found: Sequence[Sequence[float]]) -> dict[str, float]:
  """{"noise_scale": B_simple in examples}, of sums; nothing where |G|^2 is not told from zero."""
  norm2, trace = np.sum(found, axis=0).tolist() if found else (0.0, 0.0)
  return {SCALE: trace / norm2} if norm2 > 0 else {}


def _accumulate(model: Model) -> Any:
  """((mean, sum_j |g_j - mean|^2), number, ...) -> the same with one gradient more (Welford)."""
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
FIGURES: dict[str, Any] = {
  "step": 0, "lines": 0, "crc": 0, "nbytes": 0.0, "seconds": 0.0, "loss_sum": 0.0, "loss_count": 0, "noise": [],
  "last": {},
}  # fmt: skip


def with_perplexity(tested: dict[str, float], task: str) -> dict[str, float]:
  """The figures of a test; of language with "perplexity" = exp(mean loss per token), where that is a number."""
  if task != "language" or not tested["loss"] < MOST_LOSS:
    return tested
  return {"loss": tested["loss"], "perplexity": math.exp(tested["loss"])} | tested


class Metrics:
  """Account the reports of a run, and write a line to its folder for each that has one due."""

  def __init__(
    self,
    components: Components,
    folder: RunFolder,
    evaluator: Evaluator,
    reestimate: bool,
    virtual_seconds: Callable[[int], float] | None,
    presence: Callable[[], Presence | None],
  ):
    """reestimate: batch statistics from training batches instead of the workers' mean; virtual_seconds: of a step.

    presence: of workers that come and go, as it is known now.

    ValueError for these of a stream, whose batches are for training alone.
    """
    if reestimate and components.data.train.stream:
      raise ValueError("batch_stats=reestimate takes training batches anew; of a stream it must be mean")
    self._components, self._folder, self._evaluator = components, folder, evaluator
    self._reestimate, self._virtual_seconds, self._presence = reestimate, virtual_seconds, presence
    self.figures: dict[str, Any] = dict(FIGURES)  # saved with a checkpoint

  @property
  def last(self) -> dict[str, Any]:
    """The last line."""
    return self.figures["last"]

  def add(self, report: Report, lane: int, model: Consensus | None) -> None:
    """Account a report. model: to test or save. Raises NotFinite if a loss, or the model, is not."""
    losses = report.losses[lane].astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
      # Losses of single workers have steps of their own, apart from the average that is counted.
      before = self.figures["step"]
      exact = losses.size == report.step - before
      where = f"at step {before + bad[0] + 1}" if exact else f"between step {before + 1} and step {report.step}"
      raise NotFinite(f"its loss is {losses[bad[0]]} {where}")
    self.figures |= {"step": report.step, "nbytes": report.nbytes, "seconds": report.seconds}
    self.figures["loss_sum"] += math.fsum(losses)
    self.figures["loss_count"] += losses.size
    # The distance is finite only if all parameters are: a finite loss may leave others behind.
    if model and (distance := _distance(model)) is not None and not math.isfinite(distance):
      raise NotFinite(f"its parameters are not finite after step {report.step}")

  def to_test(self, report: Report, model: Consensus) -> Consensus:
    """Return the model with the batch statistics that it is tested with."""
    return self._evaluator.reestimated(model, self._training_batches(report.step)) if self._reestimate else model

  def write(self, report: Report, model: Consensus, tested: dict[str, float]) -> None:
    """Write the line of a report that has been added. tested: figures of the model. Raises NotFinite if one is not."""
    experiment, step, distance = self._components.experiment, report.step, _distance(model)
    tested = with_perplexity(tested, self._components.data.meta.get("task", ""))
    there = self._presence()
    made = there.made(step) if there else step * experiment.workers
    examples = made * experiment.batch
    line = {"step": step, "examples": examples, "epoch": examples / self._components.data.train.size}
    if self.figures["loss_count"]:
      line["train_loss"] = self.figures["loss_sum"] / self.figures["loss_count"]
    line |= {f"test_{name}": value for name, value in tested.items()}
    if distance is not None:
      line["distance"] = distance
    if experiment.noise_batches:
      line |= self._noise(model, step)
    line |= {"bytes_sent": report.nbytes, "seconds": round(report.seconds, 6)}
    if there:
      line["present"] = len(there.at(max(step - 1, 0)))
    if report.visits is not None:
      line["visits"] = report.visits
    if self._virtual_seconds:
      line["virtual_seconds"] = self._virtual_seconds(step)
    bad = [name for name, value in line.items() if not math.isfinite(value)]
    if bad:
      raise NotFinite(f"its {bad[0]} is {line[bad[0]]} after step {line['step']}")
    self.figures |= {"loss_sum": 0.0, "loss_count": 0, "lines": self.figures["lines"] + 1, "last": line}
    if self.figures["crc"] is not None:
      self.figures["crc"] = zlib.crc32(text_of(line).encode(), self.figures["crc"])
    self._folder.line(line)

  def _noise(self, model: Consensus, step: int) -> dict[str, float]:
    """Of fresh batches of the training set, the same whenever this step is evaluated."""
    experiment, source = self._components.experiment, self._components.data.train
    chosen = draw(
      source.size, batches=experiment.noise_batches, batch=experiment.batch, seed=experiment.seed, step=step
    )
    key = key_of(experiment.seed, step)
    found = self._evaluator.noise(model, map(source.take, chosen), key)
    self.figures["noise"] = recent(self.figures["noise"], found)
    return found | ratio(self.figures["noise"])

  def _training_batches(self, step: int) -> list[dict[str, np.ndarray]]:
    """Batches of worker 0, for the statistics of the consensus model."""
    batches = self._components.feed([0])(step, REESTIMATED)
    return [{name: x[0, i] for name, x in batches.items()} for i in range(REESTIMATED)]


def _distance(model: Consensus) -> float | None:
  return None if model.distance is None else float(np.asarray(model.distance.addressable_data(0)))
