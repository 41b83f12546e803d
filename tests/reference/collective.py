"""Each collective algorithm as the pseudo-code of its paper, in NumPy and float64, as a reference for the JAX code.

A reference has the signature
  reference(x0: [n], grad(worker, step, x: [n]) -> [n], *, workers, steps, inner, **hyper) -> History
with plain loops over the steps t = 0, 1, ... and the workers i = 0..p-1, one flat parameter vector per worker, and the
hyperparameter names of the factory in ddl. `inner()` creates an optimizer with its state, a function (g, x) -> u. This
package uses neither JAX nor ddl.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from reference.acco import acco
from reference.decentralized import (
  choco_sgd,
  exact_diffusion,
  gossip_pga,
  gradient_tracking,
  quasi_global_momentum,
  relay_sgd,
)
from reference.delayed import cocod, overlap_local_sgd, pipe_sgd
from reference.diloco import diloco, streaming_diloco
from reference.dion import dion
from reference.edit import edit
from reference.elastic import eamsgd, easgd, round_robin_easgd, sma
from reference.federated import fedavg, scaffold
from reference.fedopt import fedadagrad, fedadam, fedyogi
from reference.gossip import d_psgd, overlap_sgp, sgp
from reference.history import History
from reference.moments import des_loc, mt_dao
from reference.outer import bmuf, eager_diloco, noloco, slowmo
from reference.primal import gpa, snoo
from reference.rounds import adaptive_local_sgd, hierarchical_sgd
from reference.signs import distributed_lion, one_bit_adam
from reference.sparse import sparseloco
from reference.unequal_steps import fednova, fedprox

Grad = Callable[[int, int, np.ndarray], np.ndarray]  # (worker, step, x: [n]) -> [n]
Inner = Callable[[], Callable[[np.ndarray, np.ndarray], np.ndarray]]  # () -> ((g: [n], x: [n]) -> u: [n])


# ---- the inner optimizers, as in optax: x <- x + u. The attributes `first` and `second` are their moments.


def sgd(rate: float, decay: float = 0.0) -> Inner:
  """u = -eta (g + wd x); decay is the weight decay wd."""
  return lambda: lambda g, x: -rate * (g + decay * x)


def heavy_ball(rate: float, momentum: float) -> Inner:
  """v <- mu v + g; u = -eta v."""

  def fresh():
    def update(g, x):
      update.first = momentum * update.first + g
      return -rate * update.first

    update.first = 0.0
    return update

  return fresh


def nesterov(rate: float, momentum: float) -> Inner:
  """v <- mu v + g; u = -eta (g + mu v), with the new v."""

  def fresh():
    def update(g, x):
      update.first = momentum * update.first + g
      return -rate * (g + momentum * update.first)

    update.first = 0.0
    return update

  return fresh


def adam(rate: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.0) -> Inner:
  """m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; u = -eta (mhat / (sqrt(vhat) + eps) + wd x)."""

  def fresh():
    count = 0

    def update(g, x):
      nonlocal count
      count += 1
      update.first = b1 * update.first + (1 - b1) * g
      update.second = b2 * update.second + (1 - b2) * g**2
      mhat, vhat = update.first / (1 - b1**count), update.second / (1 - b2**count)
      return -rate * (mhat / (np.sqrt(vhat) + eps) + decay * x)

    update.first = update.second = 0.0
    return update

  return fresh


def scheduled(unit: Inner, schedule: Callable[[int], float]) -> Inner:
  """Multiply the updates of an optimizer of rate 1 by schedule(step). A server sets `step` before each update."""

  def fresh():
    one = unit()

    def update(g, x):
      rate, update.step = schedule(update.step), update.step + 1
      return rate * one(g, x)

    update.step = 0
    return update

  return fresh


# ---- the algorithms


def sync_sgd(x0, grad: Grad, *, workers: int, steps: int, inner: Inner) -> History:
  """Das et al.: one model, updated with the mean of all gradients; the optimizers of all workers are equal."""
  x, update, params, evaluate = x0.copy(), inner(), [], []
  for t in range(steps):
    g = sum(grad(i, t, x) for i in range(workers)) / workers
    x = x + update(g, x)
    params.append([x.copy() for _ in range(workers)])
    evaluate.append(x.copy())
  return History(np.array(params), np.array(evaluate))


def sharded_sync_sgd(x0, grad: Grad, *, workers: int, steps: int, inner: Inner) -> History:
  """Das et al.: the owner of a strip sums its part of all gradients, updates the strip and broadcasts it."""
  x, params, evaluate = x0.copy(), [], []
  strips = np.array_split(np.arange(len(x0)), workers)  # of different lengths; ddl pads instead
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    g = [grad(i, t, x) for i in range(workers)]
    after = x.copy()
    for owner, strip in enumerate(strips):
      reduced = sum(g[i][strip] for i in range(workers)) / workers  # part-reduce
      after[strip] = x[strip] + updates[owner](reduced, x[strip])  # part-broadcast
    x = after
    params.append([x.copy() for _ in range(workers)])
    evaluate.append(x.copy())
  return History(np.array(params), np.array(evaluate))


def local_sgd(x0, grad: Grad, *, workers: int, steps: int, inner: Inner, period: int) -> History:
  """Stich: all workers take the mean of the models after every tau-th step; optimizer states are not averaged."""
  return post_local_sgd(x0, grad, workers=workers, steps=steps, inner=inner, period=period, start=0)


def post_local_sgd(x0, grad: Grad, *, workers: int, steps: int, inner: Inner, period: int, start: int) -> History:
  """Lin et al.: the mean after every step t < start, then after steps start + tau, start + 2 tau, ..."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    if t < start or (t + 1 - start) % period == 0:
      mean = sum(x) / workers
      for i in range(workers):
        x[i] = mean
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def dasgd(x0, grad: Grad, *, workers: int, steps: int, inner: Inner, period: int, delay: int, keep: float) -> History:
  """Zhou et al.: the mean of a round's last step is blended d steps later.

  With d = 0 it is blended at once; with d > tau several means are in flight.
  """
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  in_flight = {}  # step after which it arrives -> mean
  for t in range(1, steps + 1):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t - 1, x[i]), x[i])
    if t in in_flight:
      for i in range(workers):
        x[i] = keep * x[i] + (1 - keep) * in_flight[t]
    if t % period == 0:
      mean = sum(x) / workers
      if delay == 0:
        for i in range(workers):
          x[i] = keep * x[i] + (1 - keep) * mean
      in_flight[t + delay] = mean
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def independent(x0, grad: Grad, *, workers: int, steps: int, inner: Inner) -> History:
  """Train without communication; evaluate the mean of the models."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


TWINS = {
  "sync_sgd": sync_sgd,
  "sharded_sync_sgd": sharded_sync_sgd,
  "pipe_sgd": pipe_sgd,
  "distributed_lion": distributed_lion,
  "dion": dion,
  "snoo": snoo,
  "gpa": gpa,
  "acco": acco,
  "one_bit_adam": one_bit_adam,
  "local_sgd": local_sgd,
  "post_local_sgd": post_local_sgd,
  "adaptive_local_sgd": adaptive_local_sgd,
  "hierarchical_sgd": hierarchical_sgd,
  "des_loc": des_loc,
  "mt_dao": mt_dao,
  "fedavg": fedavg,
  "fedadam": fedadam,
  "fedyogi": fedyogi,
  "fedadagrad": fedadagrad,
  "fedprox": fedprox,
  "fednova": fednova,
  "scaffold": scaffold,
  "dasgd": dasgd,
  "cocod": cocod,
  "overlap_local_sgd": overlap_local_sgd,
  "slowmo": slowmo,
  "bmuf": bmuf,
  "easgd": easgd,
  "eamsgd": eamsgd,
  "sma": sma,
  "round_robin_easgd": round_robin_easgd,
  "diloco": diloco,
  "muloco": diloco,
  "edit": edit,
  "streaming_diloco": streaming_diloco,
  "eager_diloco": eager_diloco,
  "sparseloco": sparseloco,
  "noloco": noloco,
  "d_psgd": d_psgd,
  "sgp": sgp,
  "overlap_sgp": overlap_sgp,
  "gradient_tracking": gradient_tracking,
  "exact_diffusion": exact_diffusion,
  "quasi_global_momentum": quasi_global_momentum,
  "choco_sgd": choco_sgd,
  "relay_sgd": relay_sgd,
  "gossip_pga": gossip_pga,
  "independent": independent,
}


# ---- a problem to run them on


@cache
def problem(workers: int, steps: int, size: int = 7, seed: int = 0) -> tuple[np.ndarray, Grad]:
  """Return initial params [size] and a gradient that is non-linear in x and differs between workers and steps.

  g_i(t, x) = A_i x - b_i(t) + sin(2 x + phase_i) / 2. The gradient accepts NumPy and JAX arrays, also with traced
  workers and steps. Calls with the same arguments return the same function, so that its compiled code is reused.
  """
  rng = np.random.default_rng(seed)
  root = rng.normal(size=(workers, size, size))
  matrix = np.einsum("wij,wkj->wik", root, root) / size
  target = rng.normal(size=(workers, steps, size))
  phase = rng.uniform(0, 6, size=(workers, size))

  def grad(worker, step, x):
    xp = x.__array_namespace__()
    a, b, c = (xp.asarray(table)[worker] for table in (matrix, target, phase))
    return a @ x - b[step] + 0.5 * xp.sin(2.0 * x + c)

  return rng.normal(size=size), grad
