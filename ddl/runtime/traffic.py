"""Bytes that a worker sends, counted from the traced program: nothing is declared by hand."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
from jax.extend import core

from ddl.api import Algorithm, Tree
from ddl.runtime.workers import AXIS
from ddl.schedule import Due


class Traffic(NamedTuple):
  """What one worker sends."""

  nbytes: float = 0.0
  messages: int = 0  # collective operations of the trace, one per leaf; the compiler may combine them

  def __add__(self, other: Any) -> "Traffic":
    return Traffic(self.nbytes + other.nbytes, self.messages + other.messages)

  def times(self, count: int) -> "Traffic":
    """The same `count` times."""
    return Traffic(self.nbytes * count, self.messages * count)


# Bytes that each of p workers sends for n bytes of its operand, with the algorithms that reach the lower bound.
SENT: dict[str, Callable[[float, int], float]] = {
  "psum": lambda n, p: 2 * n * (p - 1) / p,  # ring: reduce-scatter, then all-gather
  "pmax": lambda n, p: 2 * n * (p - 1) / p,
  "pmin": lambda n, p: 2 * n * (p - 1) / p,
  "reduce_scatter": lambda n, p: n * (p - 1) / p,
  "all_gather": lambda n, p: n * (p - 1),  # n is the worker's own part
  "all_to_all": lambda n, p: n * (p - 1) / p,
  "ppermute": lambda n, p: n,
}
NAMES = {
  "psum_invariant": "psum",
  "psum2": "psum",
  "psum_scatter": "reduce_scatter",
  "all_gather_invariant": "all_gather",
}


def count(fn: Callable[..., Any], *args: Tree, workers: int) -> Traffic:
  """Traces one worker's `fn(*args)` on `workers` devices of one worker each and adds up its collectives.

  Raises:
    ValueError: for a collective inside a loop of unknown length, or of a kind that has no rule here.
  """
  axis_env = list(zip(AXIS, (workers, 1), strict=True))
  closed = jax.make_jaxpr(fn, axis_env=axis_env)(*args)
  return _walk(closed.jaxpr, dict(axis_env))


class Meter(NamedTuple):
  """Traffic of each part of a step."""

  local: Traffic
  launch: Traffic

  def of(self, unit: Sequence[Due]) -> Traffic:
    """Traffic of the steps in `unit`."""
    launches = sum(bool(event.launch) + bool(event.exchange) for event in unit)
    return self.local.times(len(unit)) + self.launch.times(launches)


def meter(algorithm: Algorithm, state: Tree, params: Tree, workers: int) -> Meter:
  """Counts a local step and an exchange. state, params: one worker's, as arrays or shapes."""
  local = count(algorithm.local, params, state, params, workers=workers)
  if algorithm.launch is None or algorithm.merge is None:
    return Meter(local, Traffic())
  message = jax.make_jaxpr(algorithm.launch, axis_env=[(AXIS[0], workers), (AXIS[1], 1)], return_shape=True)
  shapes = message(state, params)[1]
  merge = count(algorithm.merge, shapes, state, params, workers=workers)
  return Meter(local, count(algorithm.launch, state, params, workers=workers) + merge)


def _walk(jaxpr: core.Jaxpr, sizes: dict[Any, int]) -> Traffic:
  total = Traffic()
  for eqn in jaxpr.eqns:
    name = NAMES.get(eqn.primitive.name, eqn.primitive.name)
    if name in SENT:
      total += _sent(eqn, name, sizes)
      continue
    inner = Traffic()
    for sub in jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr):
      if _is_jaxpr(sub):
        part = _walk(getattr(sub, "jaxpr", sub), sizes)
        inner = max(inner, part) if name == "cond" else inner + part  # of a condition's branches the dearest
    if inner.messages and name == "while":
      raise ValueError("traffic: a collective inside a while loop cannot be counted from the trace")
    total += inner.times(eqn.params.get("length", 1) if name == "scan" else 1)
  return total


def _sent(eqn: Any, name: str, sizes: dict[Any, int]) -> Traffic:
  """A collective over several axes is one over their product; axes of one worker send nothing."""
  axes = eqn.params.get("axes", eqn.params.get("axis_name"))
  axes = axes if isinstance(axes, tuple) else (axes,)
  workers = prod(sizes[a] for a in axes if a in sizes)
  if workers == 1:
    return Traffic()
  nbytes = sum(prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.invars)
  return Traffic(float(SENT[name](nbytes, workers)), 1)


def _is_jaxpr(x: Any) -> bool:
  return isinstance(x, core.Jaxpr | core.ClosedJaxpr)
