"""Evaluate the consensus model, estimate its gradient noise scale and write the lines of metrics.jsonl.

The gradient noise scale is the batch size beyond which more examples or workers hardly speed up training
(McCandlish, Kaplan, Amodei et al. 2018, arXiv 1812.06162). For k gradients g_j with mean gbar, each computed from b
examples drawn with replacement:
tr(Sigma) ~ S = b / (k - 1) sum_j |g_j - gbar|^2,   |G|^2 ~ |gbar|^2 - S / (k b),   B_simple = tr(Sigma) / |G|^2.
These equal the paper's unbiased estimates from batches of b and k b examples, S = (|g|^2 - |gbar|^2) / (1/b - 1/(k b))
and |G|^2 = (k b |gbar|^2 - b |g|^2) / (k b - b) with |g|^2 = (1/k) sum_j |g_j|^2, but avoid the cancellation in S.
The ratio of the two estimates is biased, so both are first averaged over the last WINDOW evaluations.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Model, Source, Tree
from ddl.config.experiment import noise_key
from ddl.engine.consensus import Consensus, NotFinite, host_distance, unstacked
from ddl.engine.local_step import gradient_of
from ddl.engine.placement import gather, is_split, local, place_like
from ddl.errors import OptionError
from ddl.hosts import wait_on_cpu
from ddl.run import average
from ddl.run.batch import Batch, LoopHook, LoopStep
from ddl.run.build import Components
from ddl.run.folder import text_of
from ddl.run.progress import bar

BATCH = 512  # examples per evaluation batch
QUIET = 2.0  # seconds before an evaluation shows a progress bar
CACHED = 256 * 2**20  # bytes; a test set up to this size stays on the device
REESTIMATED = 20  # training batches used to re-estimate batch-norm statistics


class Evaluator:
  """An evaluator of mean metrics over all examples of a source, on one device or all devices of a sharded model."""

  def __init__(self, model: Model, source: Source, more: Mapping[str, Source] | None = None):
    """Create an evaluator, which compiles when first called. more: further test sets, see `Data.tests`."""
    self.noise = NoiseEstimator(model)
    self._sets = {name: _Batches(part) for name, part in ({"": source} | dict(more or {})).items()}
    metrics = _metrics_of(model)
    self._metrics, self._together = jax.jit(metrics), jax.jit(partial(_together, metrics))
    self._train = jax.jit(lambda params, extra, batch: model.loss(params, extra, batch, jax.random.key(0))[1])

  def __call__(self, models: Sequence[Consensus]) -> list[dict[str, float]]:
    """Return each model's mean metrics, such as {"loss": 2.3, "accuracy": 0.1}; one program evaluates all models.

    The names of the metrics on a further test set begin with the name of the set.
    """
    trees = local([model[:2] for model in models])
    out: list[dict[str, float]] = [{} for _ in trees]
    for name, batches in self._sets.items():
      prefix = f"{name}_" if name else ""
      for means, totals in zip(out, self._totals(trees, batches), strict=True):
        means |= {f"{prefix}{metric}": total / batches.source.size for metric, total in totals.items()}
    return out

  def _totals(self, trees: Sequence[Tree], batches: "_Batches") -> list[dict[str, float]]:
    """Return the sum of each metric over the examples of a test set, for each model."""
    params, sums = trees[0][0], list[tuple[int, Tree]]()
    with bar("evaluating", -(-batches.source.size // BATCH), delay=QUIET) as shown:
      for batch in batches.on(params):
        figures = self._together(trees, batch) if len(trees) > 1 else [self._metrics(*trees[0], batch)]
        sums.append((len(jax.tree.leaves(batch)[0]), wait_on_cpu(figures) if is_split(params) else figures))
        shown.update()
      gathered = gather(sums)
    totals: list[dict[str, float]] = [{} for _ in trees]
    for size, batch_figures in gathered:
      for total, figures in zip(totals, batch_figures, strict=True):
        for name, values in figures.items():
          total[name] = total.get(name, 0.0) + float(np.mean(values, dtype=np.float64)) * size
    return totals

  def reestimated(self, model: Consensus, batches: Sequence[dict[str, np.ndarray]]) -> Consensus:
    """Return the model with batch-norm statistics re-estimated from these batches."""
    params, extra = local(model[:2])
    for batch in batches:
      extra = self._train(params, extra, place_like(batch, params))
    return model._replace(extra=extra)


class _Batches:
  """The batches of a test set, which stay on the devices if they are small."""

  def __init__(self, source: Source):
    self.source = source
    self._batches: list[Any] | None = None

  def on(self, params: Tree) -> Any:
    """Return all batches, placed on the devices of `params`. These devices must be the same in every call."""
    if self._batches is not None:
      return self._batches
    source = self.source
    starts = range(0, source.size, BATCH)
    batches = (source.take(np.arange(s, min(s + BATCH, source.size))) for s in starts)
    first = source.take(np.arange(1))
    if sum(x.nbytes for x in first.values()) * source.size > CACHED:
      return (place_like(batch, params) for batch in batches)
    self._batches = [place_like(batch, params) for batch in batches]
    return self._batches


class Metric(NamedTuple):
  """A metric by which runs are compared."""

  name: str  # its column in metrics.jsonl without "test_", such as "accuracy"
  higher_is_better: bool

  def better(self, one: float, other: float) -> bool:
    """Return whether the value `one` is better than the value `other`."""
    return one > other if self.higher_is_better else one < other


HIGHER = {"accuracy": True, "accuracy_top5": True, "loss": False, "perplexity": False}  # metric -> higher is better
MODES = {"max": True, "min": False}  # value of config.compare.mode -> whether higher is better


def comparison_metric(requested: str, mode: str, model: Model, sources: Mapping[str, Source], task: str) -> Metric:
  """Return the metric by which runs are compared. The model is only traced.

  Args:
    requested: a metric of the model, or "perplexity" for a language model; for a source NAME other than the main one,
      with the prefix "NAME_" (such as "ema_loss"). "": the accuracy if the model defines it, else the loss.
    mode: "max" if higher values are better, "min" if lower ones are; "": look the metric up in HIGHER.
    sources: the test sets by name; the main one has the name "". The name "ema" stands for the averaged model.

  Raises OptionError if the metric is unknown, `mode` is invalid, or `mode` is "" for a metric that HIGHER lacks.
  """
  source = sources[""]
  figures = jax.eval_shape(lambda: _metrics_of(model)(*model.init(jax.random.key(0)), source.take(np.arange(1))))
  names = [*figures, *["perplexity"] * (task == "language")]
  known = {f"{prefix}_{name}" if prefix else name: name for prefix in sources for name in names}
  if requested and requested not in known:
    condition = f"one of {', '.join(known)} for this model and data"
    raise OptionError("config.compare.metric", condition, repr(requested))
  metric = requested or ("accuracy" if "accuracy" in known else "loss")
  if mode not in ("", *MODES) or (not mode and known[metric] not in HIGHER):
    raise OptionError("config.compare.mode", f"max or min for the metric {metric}", repr(mode))
  return Metric(metric, MODES[mode] if mode else HIGHER[known[metric]])


def _together(metrics: Any, models: Sequence[Tree], batch: Any) -> list[dict[str, jax.Array]]:
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
  figures = jax.vmap(lambda model: metrics(*model, batch))(stacked)
  return unstacked(figures)


def _metrics_of(model: Model) -> Any:
  """Return a function that computes a model's metrics: `model.metrics`, or only the loss if the model has none."""

  def metrics(params: Tree, extra: Tree, batch: Any) -> dict[str, jax.Array]:
    return {"loss": jnp.atleast_1d(model.loss(params, extra, batch, jax.random.key(0))[0])}

  return model.metrics or metrics


WINDOW = 5  # evaluations to average over; during more of them, gradients shrink too much
NORM2, TRACE, SCALE = "grad_norm2", "grad_noise", "noise_scale"  # keys in a line of metrics


class NoiseEstimator:
  """An estimator of |G|^2 and tr(Sigma) for one model, on one device or all devices of a sharded model."""

  def __init__(self, model: Model):
    """Create an estimator, which compiles when first called."""
    self._add, self._square = jax.jit(_accumulate(model)), jax.jit(_square)

  def __call__(
    self, consensus: Consensus, batches: Iterable[Mapping[str, np.ndarray]], key: jax.Array
  ) -> dict[str, float]:
    """Return {"grad_norm2": |G|^2, "grad_noise": tr(Sigma) per example} from at least two batches of equal size."""
    params, extra = local((consensus.params, consensus.extra))
    carry, count, size = (jax.tree.map(_zeros, params), jnp.zeros(())), 0, 0
    for count, batch in enumerate(batches, 1):
      size, batch_key = len(jax.tree.leaves(batch)[0]), jax.random.fold_in(key, count)
      carry = self._add(carry, float(count), params, extra, place_like(batch, params), batch_key)
    mean, spread = carry
    trace = size * float(spread) / (count - 1)  # S
    return {NORM2: float(self._square(mean)) - trace / (count * size), TRACE: trace}


def draw(size: int, *, batches: int, batch: int, seed: int, step: int) -> np.ndarray:
  """Return example indices [batches, batch] drawn from 0..size-1 with replacement; the arguments determine them."""
  generator = np.random.default_rng(np.random.SeedSequence((seed, step, batches, batch)))
  return generator.integers(size, size=(batches, batch))


def recent(before: Sequence[Sequence[float]], line: Mapping[str, float]) -> list[list[float]]:
  """Return the last WINDOW pairs (|G|^2, tr(Sigma)): those of `before`, then that of `line` if it has one."""
  return [*map(list, before), *([[line[NORM2], line[TRACE]]] if NORM2 in line else [])][-WINDOW:]


def ratio(sums: Sequence[Sequence[float]]) -> dict[str, float]:
  """Return {"noise_scale": B_simple in examples} from pairs (|G|^2, tr(Sigma)); {} if the sum of |G|^2 is <= 0."""
  norm2, trace = np.sum(sums, axis=0).tolist() if sums else (0.0, 0.0)
  return {SCALE: trace / norm2} if norm2 > 0 else {}


def _accumulate(model: Model) -> Any:
  """Return the function that adds a gradient to (mean, sum_j |g_j - mean|^2) by Welford's algorithm."""
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


MOST_LOSS = 700.0  # exp(loss) overflows above 709


def with_perplexity(tested: dict[str, float], task: str) -> dict[str, float]:
  """Add "perplexity" = exp(mean loss per token) to a language model's metrics if the loss is below MOST_LOSS."""
  if task != "language":
    return tested
  losses = {name: value for name, value in tested.items() if f"_{name}".endswith("_loss") and value < MOST_LOSS}
  out = dict[str, float]()
  for name, value in losses.items():
    out |= {name: value, f"{name.removesuffix('loss')}perplexity": math.exp(value)}
  return out | tested


class Losses(LoopHook):
  """A hook that sums the training losses of each run and detects losses that are not finite."""

  def __call__(self, state: LoopStep) -> None:
    """Add the losses of the last call of the compiled program."""
    state.batch.for_active(partial(self._add, state))

  def _add(self, state: LoopStep, run: int) -> None:
    figures, losses = state.batch.figures[run], state.losses[state.batch.lanes[run]].astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
      before = figures["step"]
      exact = losses.size == state.step - before  # asynchronous workers may have several losses per step
      where = f"at step {before + bad[0] + 1}" if exact else f"between step {before + 1} and step {state.step}"
      raise NotFinite(f"its loss is {losses[bad[0]]} {where}")
    figures |= {"step": state.step, "nbytes": state.nbytes, "seconds": state.seconds}
    figures["loss_sum"] += math.fsum(losses)
    figures["loss_count"] += losses.size


class Evaluation(LoopHook):
  """A hook that evaluates the consensus models and writes a line of metrics for each run."""

  def __init__(self, batch: Batch, evaluator: Evaluator, batch_stats: str = "mean"):
    """Create the hook.

    batch_stats: "mean" averages the workers' batch-norm statistics; "reestimate" computes them from training batches.
    """
    self._evaluator, self._reestimate = evaluator, batch_stats == "reestimate"
    self._every, self._steps = batch.experiment.eval_every, batch.experiment.steps
    if self._reestimate and any(run.components.data.train.stream for run in batch.runs):
      raise OptionError("batch_stats", "mean for streamed training data", "reestimate")

  def due(self, first: int, step: int) -> bool:
    """Return whether the step is a multiple of config.eval_every or the last one."""
    del first
    return step % self._every == 0 or step == self._steps

  def __call__(self, state: LoopStep) -> None:
    """Evaluate the models if an evaluation is due."""
    if state.carry is None or not self.due(state.first, state.step):
      return
    batch, tested = state.batch, [*state.models]
    if self._reestimate:
      for run in batch.active:
        lane = batch.lanes[run]
        batches = _training_batches(batch.runs[run].components, state.step)
        tested[lane] = self._evaluator.reestimated(tested[lane], batches)
    averaged = average.update(batch, state.step, tested) if batch.experiment.ema else []
    figures = self._evaluator(tested)
    for of_model, of_average in zip(figures, self._evaluator(averaged) if averaged else [], strict=False):
      of_model |= {f"{average.EMA}_{name}": value for name, value in of_average.items()}
    batch.for_active(lambda run: self._write(state, run, figures[batch.lanes[run]]))

  def _write(self, state: LoopStep, run: int, tested: dict[str, float]) -> None:
    """Write a run's line of metrics. Raises NotFinite if a value is not finite.

    Reports read only the columns in `ddl.report.reader.COLUMNS`.
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
  """Estimate the gradient noise after a step from random training batches, see `draw`."""
  experiment, source = components.experiment, components.data.train
  drawn = draw(source.size, batches=experiment.noise_batches, batch=experiment.batch, seed=experiment.seed, step=step)
  return estimator(model, map(source.take, drawn), jax.random.fold_in(noise_key(experiment.seed), step))


def _training_batches(components: Components, step: int) -> list[dict[str, np.ndarray]]:
  """Return training batches of worker 0, for re-estimating batch-norm statistics."""
  batches = components.feed([0])(step, REESTIMATED)
  return [{name: x[0, i] for name, x in batches.items()} for i in range(REESTIMATED)]
