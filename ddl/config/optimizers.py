"""The inner optimizers of a config: those of optax with their names and keyword arguments, and `sgd_adamw`.

All also take `weight_decay`, which skips arrays with fewer than two axes unless `decay_all` is set, and `clip_norm`,
the maximum global norm of the optimizer's input. With `sync_sgd` and `pipe_sgd` this input is the mean of the workers'
gradients. With local steps or a server it is the gradient of one worker, which `scaffold` and `dc_asgd` correct first.
With a `barrier` that averages the messages of a round, it is this average. `sharded_sync_sgd` and servers on Ray do not
support `clip_norm`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import jax
import numpy as np
import optax
from optax import contrib

from ddl.algorithms.matrices import hidden_matrices
from ddl.api import Tree
from ddl.elementwise import is_elementwise
from ddl.ranges import LARGEST_FLOAT, Momentum, NonNegativeFloat, PositiveFloat, Range, checked, integers, is_set

COMMON: dict[str, Any] = {"weight_decay": 0.0, "decay_all": False, "clip_norm": 0.0}
MASKS = ("mask", "weight_decay_mask")
RANGES = {  # annotations of the keyword arguments of optax's optimizers
  **dict.fromkeys(("b1", "b2", "b3", "beta", "adam_b1", "adam_b2", "momentum", "decay", "rho"), Momentum),
  **dict.fromkeys(("eps", "trust_coefficient"), PositiveFloat),
  **dict.fromkeys(("eps_root", "adam_eps_root", "initial_accumulator_value", "initial_scale"), NonNegativeFloat),
  **dict.fromkeys(("weight_decay", "adam_weight_decay", "clip_norm"), NonNegativeFloat),
  "threshold": Annotated[float, Range(4, LARGEST_FLOAT)],  # below 4, RAdam takes the root of a negative number
  "ns_steps": Annotated[int, integers(1, 100)],
}


@functools.wraps(contrib.muon, assigned=())
def muon(rate: float | optax.Schedule, **settings: Any) -> optax.GradientTransformation:
  """Orthogonalize the momentum of hidden matrices (Muon); apply AdamW to vectors, embeddings and the output layer.

  The hidden matrices are those that `ddl.hidden_matrices` selects. Both optimizers are those of `optax.contrib.muon`.
  """
  nowhere: Any = {"muon_weight_dimension_numbers": lambda params: jax.tree.map(lambda _: None, params)}
  return _partition(contrib.muon(rate, **settings), contrib.muon(rate, **settings, **nowhere))


def sgd_adamw(
  rate: float | optax.Schedule,
  b1: float = 0.9,
  b2: float = 0.95,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  mask: Any = None,
) -> optax.GradientTransformation:
  """Apply SGD with decoupled weight decay to hidden matrices, AdamW to vectors, embeddings and the output layer.

  This is an inner optimizer for `dion`, which orthogonalizes the updates of the hidden matrices itself. These are the
  matrices that `ddl.hidden_matrices` selects.
  """
  sgd = optax.chain(optax.add_decayed_weights(weight_decay, mask), optax.scale_by_learning_rate(rate))
  return _partition(sgd, optax.adamw(rate, b1, b2, eps, weight_decay=weight_decay, mask=mask))


def _partition(
  hidden: optax.GradientTransformation, others: optax.GradientTransformation
) -> optax.GradientTransformation:
  def labels(params: Tree) -> Tree:
    return jax.tree.map(lambda is_hidden: "hidden" if is_hidden else "others", hidden_matrices(params))

  return optax.partition({"hidden": hidden, "others": others}, labels)


def from_optax(make: Callable[..., optax.GradientTransformation]) -> Callable[..., optax.GradientTransformation]:
  """Return a factory (rate, *, settings) for an optax optimizer.

  The settings are the optimizer's numeric and boolean arguments and those in COMMON.

  Weight decay is decoupled if the optax optimizer supports it (AdamW, LAMB, Lion), else L2 regularization.
  """
  parameters = inspect.signature(make).parameters
  known = {
    key: p.default for key, p in parameters.items() if type(p.default) in (int, float, bool) and key not in MASKS
  }
  known |= {"momentum": 0.0} if "momentum" in parameters and "momentum" not in known else {}
  mask = next((key for key in MASKS if key in parameters), None)
  if mask is None:
    known.pop("weight_decay", None)  # it would apply to all arrays

  def factory(rate: float | optax.Schedule, **overrides: Any) -> optax.GradientTransformation:
    settings = {**COMMON, **known, **overrides}
    decay, everything, norm = settings["weight_decay"], settings.pop("decay_all"), settings.pop("clip_norm")
    before = [optax.clip_by_global_norm(norm)] if is_set(norm) else []
    if "weight_decay" not in known and is_set(settings.pop("weight_decay")):
      before.append(optax.add_decayed_weights(decay, None if everything else matrices))
    elif mask and is_set(decay) and not everything:
      settings[mask] = matrices
    if "momentum" in settings and parameters["momentum"].default is None and not is_set(settings["momentum"]):
      settings["momentum"] = None  # avoids the state of an unused momentum
    return optax.chain(*before, make(rate, **settings)) if before else make(rate, **settings)

  keywords = {**known, **{key: value for key, value in COMMON.items() if key not in known}}
  factory.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
    [inspect.Parameter("rate", inspect.Parameter.POSITIONAL_ONLY)]
    + [
      inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=_annotation(key, value))
      for key, value in keywords.items()
    ]
  )
  factory.__name__ = getattr(make, "__name__", "optimizer")  # some of optax's are functools.partial objects
  factory.__doc__ = (inspect.getdoc(make) or "").partition("\n")[0]
  return checked(factory)


def _annotation(key: str, default: Any) -> Any:
  """Return the annotation of a keyword argument: its type and range; eps may be 0 only if 0 is its default."""
  if isinstance(default, bool):
    return bool
  return NonNegativeFloat if key == "eps" and not default else RANGES.get(key, type(default))


def matrices(params: Tree) -> Tree:
  """Return the weight-decay mask: True for leaves with two or more axes."""
  return jax.tree.map(lambda x: x.ndim > 1, params)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
  name: from_optax(make)
  for name, make in {
    "sgd": optax.sgd,
    "sign_sgd": optax.sign_sgd,
    "adam": optax.adam,
    "adamw": optax.adamw,
    "adamax": optax.adamax,
    "nadam": optax.nadam,
    "nadamw": optax.nadamw,
    "radam": optax.radam,
    "amsgrad": optax.amsgrad,
    "adabelief": optax.adabelief,
    "adan": optax.adan,
    "adagrad": optax.adagrad,
    "adadelta": optax.adadelta,
    "rmsprop": optax.rmsprop,
    "yogi": optax.yogi,
    "lion": optax.lion,
    "novograd": optax.novograd,
    "lamb": optax.lamb,
    "lars": optax.lars,
    "muon": muon,
    "sgd_adamw": sgd_adamw,
  }.items()
}


def elementwise(inner: optax.GradientTransformation) -> bool:
  """Return whether an optimizer is element-wise on the kernel and bias of a layer."""
  layer = {"kernel": jax.ShapeDtypeStruct((2, 3), np.float32), "bias": jax.ShapeDtypeStruct((3,), np.float32)}
  return is_elementwise(inner, layer)
