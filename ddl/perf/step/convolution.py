"""Which convolution algorithm each layer should run: the fastest choice whose workspaces fit into the memory left.

The 0-1 program of Zou et al. 2017, arXiv 1709.06622, over layers k and algorithms l with x_kl in {0, 1}:
  minimise sum_kl x_kl T_kl  subject to  sum_l x_kl = 1 for each k,  sum_kl x_kl M_kl <= M_bound.
Layers run one after the other, so they can share one workspace: then max_kl x_kl M_kl <= M_bound takes the sum's place.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, sparse

from ddl.perf.step.memory import StepMemory
from ddl.perf.units import bytes_text


class DoesNotFit(ValueError):
  """No choice of algorithms fits into the memory left."""


class Costs(NamedTuple):
  """What each algorithm needs in each layer at one mini-batch; infinite seconds where it can't do the layer."""

  algorithms: tuple[str, ...]
  seconds: np.ndarray  # [layers, algorithms] (T_kl)
  workspace: np.ndarray  # [layers, algorithms] bytes (M_kl)


class Choice(NamedTuple):
  """One algorithm per layer."""

  algorithms: tuple[str, ...]  # [layers]
  seconds: float  # of all layers
  workspace: float  # bytes: the sum, or the maximum where it is shared


class BatchChoice(NamedTuple):
  """The best choice at one mini-batch."""

  examples: int
  choice: Choice
  throughput: float  # examples per second


def choose(costs: Costs, bound: float, *, shared: bool = False) -> Choice:
  """The fastest algorithms within `bound` bytes of workspace, by scipy's mixed-integer solver.

  Args:
    costs: of each algorithm in each layer.
    bound: bytes that are left for workspaces (M_bound).
    shared: one workspace for all layers (the largest counts) instead of one for each (the sum counts).

  Raises:
    DoesNotFit: if no choice fits, with the bytes that would do.
    ValueError: for invalid costs.
  """
  seconds, workspace = _checked(costs)
  layers, count = seconds.shape
  able = np.isfinite(seconds)
  least = np.where(able, workspace, np.inf).min(axis=1)
  needed = _total(least, shared)
  if not needed <= bound:
    have = f"{bytes_text(bound)} are left" if bound > 0 else "none is left"
    raise DoesNotFit(f"the smallest workspaces need {bytes_text(needed)} ({needed:.0f} bytes), but {have}")
  if not layers:
    return Choice((), 0.0, 0.0)
  allowed = able & (workspace <= bound)
  # The solver's tolerances are absolute: both the objective and the bytes are brought to a scale where they are small.
  scale = max(float(seconds[allowed].max()), 1e-300) / 1e3
  objective = np.where(allowed, seconds, 0).ravel() / scale
  one_each = optimize.LinearConstraint(sparse.kron(sparse.eye_array(layers), np.ones((1, count))).tocsr(), 1, 1)
  rules = [one_each]
  if not shared:
    unit = max(bound, 1.0)
    rules.append(
      optimize.LinearConstraint(np.where(allowed, workspace, 0).reshape(1, -1) / unit, -np.inf, bound / unit)
    )
  upper: Any = allowed.ravel().astype(float)  # scipy's types know of numbers alone
  while True:
    found = optimize.milp(
      objective,
      integrality=np.ones(objective.size),
      bounds=optimize.Bounds(0, upper),
      constraints=rules,
      options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
      raise RuntimeError(f"the solver gave up: {found.message}")
    chosen = found.x.reshape(layers, count).argmax(axis=1)
    rows = np.arange(layers)
    total = _total(workspace[rows, chosen], shared)
    if total <= bound:
      return Choice(tuple(costs.algorithms[i] for i in chosen), float(seconds[rows, chosen].sum()), total)
    # Over the bound by less than the solver sees: the same again without this choice.
    taken = np.zeros((layers, count))
    taken[rows, chosen] = 1
    rules.append(optimize.LinearConstraint(taken.reshape(1, -1), -np.inf, layers - 1))


def best_batch(
  memory: StepMemory,
  limit: float,
  batches: Iterable[int],
  costs: Callable[[int], Costs],
  *,
  other_seconds: Callable[[int], float] = lambda examples: 0.0,
  shared: bool = False,
) -> tuple[BatchChoice, ...]:
  """The program solved for each mini-batch X that fits, as X changes T, M and M_bound; the best throughput first.

  Args:
    memory: of a step (M_FM + M_MP + M_C); what it leaves of `limit` is M_bound.
    limit: bytes of the device.
    batches: the mini-batches to try.
    costs: X -> of each algorithm in each layer; measured or modelled.
    other_seconds: X -> of what is no convolution.
    shared: one workspace for all layers.

  Raises:
    DoesNotFit: if no mini-batch fits, with what the smallest one needs.
    ValueError: for no mini-batch to try, or invalid costs.
  """
  out, problems = [], {}
  for examples in sorted(set(batches)):
    try:
      choice = choose(costs(examples), limit - memory.total(examples), shared=shared)
    except DoesNotFit as error:
      problems[examples] = error
      continue
    out.append(BatchChoice(examples, choice, examples / (choice.seconds + other_seconds(examples))))
  if not out:
    if not problems:
      raise ValueError("no mini-batch to try")
    first = min(problems)
    raise DoesNotFit(
      f"a mini-batch of {first} needs {bytes_text(memory.total(first))} of {bytes_text(limit)}; {problems[first]}"
    )
  return tuple(sorted(out, key=lambda x: (-x.throughput, x.examples)))


def _total(workspace: np.ndarray, shared: bool) -> float:
  if not workspace.size:
    return 0.0
  return float(workspace.max() if shared else workspace.sum())


def _checked(costs: Costs) -> tuple[np.ndarray, np.ndarray]:
  seconds, workspace = np.asarray(costs.seconds, float), np.asarray(costs.workspace, float)
  if seconds.ndim != 2 or seconds.shape != workspace.shape or seconds.shape[1] != len(costs.algorithms):
    raise ValueError(
      f"costs of shapes {seconds.shape} and {workspace.shape} are not [layers, {len(costs.algorithms)} algorithms]"
    )
  able = np.isfinite(seconds)
  if (
    np.isnan(seconds).any() or (seconds < 0).any() or not (np.isfinite(workspace[able]) & (workspace[able] >= 0)).all()
  ):
    raise ValueError("seconds are 0 or more, or infinite for 'can't do it'; workspaces are finite and 0 or more")
  if not able.any(axis=1).all():
    raise ValueError(f"layer {int(np.argmin(able.any(axis=1)))} has no algorithm that can do it")
  return seconds, workspace
