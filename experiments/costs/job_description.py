"""An experiment as a job of the planner: its step as compiled by XLA, its memory counted from the trace."""

from functools import cache
from typing import Any

import jax
import numpy as np

from ddl.api import Model, Tree
from ddl.perf.planning.batch import Job
from ddl.perf.step.memory import COPIES, StepMemory
from experiments.costs.calibration.model_kinds import published_kind
from experiments.costs.param_flops import loss_jaxpr, param_shapes, products
from experiments.costs.xla_cost import batch_shapes, compiled_step, step_parts
from experiments.train.build import Components, params_bytes


def experiment_job(components: Components, workers: int | None = None) -> Job:
  """Return FLOP, bytes and exact memory by XLA, and the memory model's count; ValueError for too many workers.

  All are of one of the config's microbatches; where there are several, the sums of their gradients and the examples of
  the others take memory too.

  workers: None: the experiment's.
  """
  config = components.experiment
  count, size, k = workers or config.workers, components.data.train.size, config.microbatches
  least, nbytes = config.batch // k, params_bytes(components.model)
  example = _nbytes(batch_shapes(components, 1))

  @cache
  def exact(examples: int) -> int:
    others = nbytes + (k - 1) * examples * example if k > 1 else 0
    return compiled_step(components, examples).peak + others

  if count > size:
    raise ValueError(
      f"{count} workers are more than the {size} examples of {config.data.short_name}; give at most {size}"
    )
  return Job(
    title=f"{model_title(components)} on {config.data.short_name}",
    params_bytes=nbytes,
    step=step_parts(components, least),
    memory=counted(components),
    kind=published_kind(str(config.model.name)),
    exact=exact,
    least=least,
    most=size // (count * k),
    data=size,
  )


def model_title(components: Components) -> str:
  """Return the model with its sizes: "mlp 784-512-512-10", "lenet channels 16,32, kernel 5"."""
  part, meta = components.experiment.model, components.data.meta
  name, sizes, hidden = part.short_name, part.settings, part.get("hidden")
  if isinstance(hidden, list | tuple):  # its layers' widths, from the input on
    return f"{name} {'-'.join(map(str, (int(np.prod(meta['shape'])), *hidden, meta['num_outputs'])))}"
  words = (f"{k} {','.join(map(str, v)) if isinstance(v, list | tuple) else v}" for k, v in sizes.items())
  return f"{name} {', '.join(words)}".strip()


def counted(components: Components) -> StepMemory:
  """The memory model on the traced loss: outputs of its products as feature maps, three copies of the parameters.

  The optimizer's state is added; that of an algorithm is in the compiled step alone.
  """
  params = param_shapes(components.model)
  state = jax.eval_shape(components.experiment.make_optimizer().init, params)
  batch = batch_shapes(components, 1)
  return StepMemory(
    per_example=_nbytes(batch) + feature_maps(components.model, batch),
    fixed=COPIES * _nbytes(params) + _nbytes(state),
  )


def feature_maps(model: Model, batch: Tree) -> int:
  """Return the bytes of the outputs of all matrix products and convolutions in the loss of a batch of these shapes."""
  found = products(loss_jaxpr(model, batch).eqns)
  return sum(times * _nbytes([x.aval for x in product.outvars]) for product, times in found)


def _nbytes(tree: Any) -> int:
  return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))
