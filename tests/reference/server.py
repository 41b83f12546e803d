"""Each server algorithm as the pseudo-code of its paper, in NumPy and float64, as a reference for any order of events.

A reference has the signature
  reference(x0: [n], grad(worker, step, x: [n]) -> [n], *, order: [events], peers: [events], workers, inner, **hyper)
and returns a History. Event e serves worker order[e] (with peer peers[e], -1 for none). A worker's steps are counted
from 0. With a delay of 0 the worker computes its steps from its last reply, and then sends its request. With a delay of
1 it sends the request before its first step and merges the reply after it; before its first event it has made no step.
Schedules of an optimizer at the server use the worker's step, for a sum of gradients the middle one (`at`). Arrays are
never modified in place. This file uses neither JAX nor ddl.
"""

from typing import NamedTuple

import numpy as np
from reference.buffered_server import fedbuff, rennala_sgd, ringmaster_asgd
from reference.collective import Grad, Inner
from reference.decoupled_diloco import decoupled_diloco
from reference.diloco import rate_at
from reference.halos import halos


class History(NamedTuple):
  """The state after each event."""

  params: np.ndarray  # [events, n]: the served worker's model at its request
  evaluate: np.ndarray  # [events, n]: the evaluated model after the event


def history(rows) -> History:
  params, evaluate = zip(*rows, strict=True)
  return History(np.array(params), np.array(evaluate))


def at(update, step: int):
  """Set the schedules of the server's optimizer to a worker's step."""
  update.step = step
  return update


# ---- gradients to a master


def async_sgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner) -> History:
  """You et al.: Wb <- Wb - eta g(W), W of the last reply; replies Wb."""
  return async_msgd(x0, grad, order=order, peers=peers, workers=workers, inner=inner, momentum=0.0)


def async_msgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner, momentum: float) -> History:
  """You et al. (3) and (4) at the master: V <- mu V - eta g(W); Wb <- Wb + V."""
  center, velocity, update = x0, 0.0 * x0, inner()
  reported, steps, rows = [x0] * workers, [0] * workers, []
  for i in order:
    g = grad(i, steps[i], reported[i])
    velocity = momentum * velocity + at(update, steps[i])(g, center)
    center = center + velocity
    rows.append((reported[i], center))
    reported[i], steps[i] = center, steps[i] + 1
  return history(rows)


def hogwild_sgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner) -> History:
  """You et al., with a lock: each worker's optimizer computes u from g(W); Wb <- Wb + u."""
  center, updates = x0, [inner() for _ in range(workers)]
  reported, steps, rows = [x0] * workers, [0] * workers, []
  for i in order:
    center = center + updates[i](grad(i, steps[i], reported[i]), reported[i])
    rows.append((reported[i], center))
    reported[i], steps[i] = center, steps[i] + 1
  return history(rows)


def downpour(x0, grad: Grad, *, order, peers, workers: int, inner: Inner, period: int) -> History:
  """Dean et al.: local steps, the sum of their gradients to the server's optimizer, then restart from the center."""
  z, at_server, updates = x0, inner(), [inner() for _ in range(workers)]
  reported, steps, rows = [x0] * workers, [0] * workers, []
  for i in order:
    x, total, middle = reported[i], 0.0, steps[i] + (period - 1 + steps[i] // period % 2) // 2
    for _ in range(period):
      g = grad(i, steps[i], x)
      total, x, steps[i] = total + g, x + updates[i](g, x), steps[i] + 1
    z = z + at(at_server, middle)(total, z)
    rows.append((x, z))
    reported[i] = z
  return history(rows)


def dc_asgd(
  x0, grad: Grad, *, order, peers, workers: int, inner: Inner, compensation: float, adaptive: bool
) -> History:
  """Zheng et al.: z <- z - eta (g + lam g g (z - z_bak(i))); adaptive lam = lam0 / sqrt(ms + 1e-7)."""
  z, ms, update = x0, 0.0 * x0, inner()
  backup, steps, rows = [x0] * workers, [0] * workers, []
  for i in order:
    g = grad(i, steps[i], backup[i])
    ms = 0.95 * ms + 0.05 * g**2
    lam = compensation / np.sqrt(ms + 1e-7) if adaptive else compensation
    z = z + at(update, steps[i])(g + lam * g * g * (z - backup[i]), z)
    rows.append((backup[i], z))
    backup[i], steps[i] = z, steps[i] + 1
  return history(rows)


def staleness_aware_sgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner) -> History:
  """Zhang et al. 2015: z <- z - eta / max(staleness, 1) g, staleness = updates since the last reply."""
  z, update = x0, inner()
  reported, when, steps, rows = [x0] * workers, [0] * workers, [0] * workers, []
  for event, i in enumerate(order):
    u = at(update, steps[i])(grad(i, steps[i], reported[i]), z)
    z = z + u / max(event - when[i], 1)
    rows.append((reported[i], z))
    reported[i], when[i], steps[i] = z, event + 1, steps[i] + 1
  return history(rows)


# ---- differences to a server


def dynsgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner, period: int) -> History:
  """Jiang et al.: z <- z + (x_i - z_pulled) / (staleness + 1), staleness = updates since the worker pulled."""
  z, updates = x0, [inner() for _ in range(workers)]
  reported, when, steps, rows = [x0] * workers, [0] * workers, [0] * workers, []
  for event, i in enumerate(order):
    x = reported[i]
    for _ in range(period):
      x, steps[i] = x + updates[i](grad(i, steps[i], x), x), steps[i] + 1
    z = z + (x - reported[i]) / (event - when[i] + 1)
    rows.append((x, z))
    reported[i], when[i] = z, event + 1
  return history(rows)


def async_local_sgd(
  x0, grad: Grad, *, order, peers, workers: int, inner: Inner,
  outer_learning_rate: float, outer_momentum: float, every: int, decay: float, period: int, dylu: bool = False,
) -> History:  # fmt: skip
  """Liu et al.: acc += D; every N arrivals m <- b m + acc/N, z -= e ((1 - cN + c) b m + D/N), acc = 0;
  else z -= e (c b m + D/N). e may depend on the number of periods of the worker's steps.

  dylu: True or False for equal speeds, or the number of steps per round of each worker.
  """
  z, m, acc, updates = x0, 0.0 * x0, 0.0 * x0, [inner() for _ in range(workers)]
  reported, steps, rows = [x0] * workers, [0] * workers, []
  for event, i in enumerate(order):
    x, count = reported[i], dylu[i] if isinstance(dylu, tuple) else period
    middle = steps[i] + (count - 1 + steps[i] // count % 2) // 2  # step of the round
    e = rate_at(outer_learning_rate, middle // period)
    for _ in range(count):
      x, steps[i] = x + updates[i](grad(i, steps[i], x), x), steps[i] + 1
    d = reported[i] - x
    acc = acc + d
    if (event + 1) % every == 0:
      m = outer_momentum * m + acc / every
      z = z - e * ((1 - decay * every + decay) * outer_momentum * m + d / every)
      acc = 0.0 * x0
    else:
      z = z - e * (decay * outer_momentum * m + d / every)
    rows.append((x, z))
    reported[i] = z
  return history(rows)


# ---- elastic averaging; a step hides the exchange


def async_measgd(
  x0, grad: Grad, *, order, peers, workers: int, inner: Inner, alpha: float, momentum: float, period: int
) -> History:
  """You et al. (5) and (6): V <- mu V - eta g(W); W <- W + V - alpha (W - Wb); Wb <- Wb + alpha (W - Wb), one worker
  at a time, W and Wb both from before.
  """
  center, updates = x0, [inner() for _ in range(workers)]
  w, v, diff = [x0] * workers, [0.0 * x0] * workers, [None] * workers
  steps, rows = [0] * workers, []
  for i in order:
    if diff[i] is not None:  # the steps since its last event
      for s in range(period):
        v[i] = momentum * v[i] + updates[i](grad(i, steps[i], w[i]), w[i])
        w[i] = w[i] + v[i] - (alpha * diff[i] if s == 0 else 0.0)
        steps[i] += 1
    diff[i] = w[i] - center
    center = center + alpha * diff[i]
    rows.append((w[i], center))
  return history(rows)


def async_easgd(x0, grad: Grad, *, momentum: float = 0.0, **rest) -> History:
  """You et al. (1) and (2), first come, first served; the only velocity is the optimizer's."""
  return async_measgd(x0, grad, momentum=momentum, **rest)


def original_easgd(x0, grad: Grad, **rest) -> History:
  """You et al.: `async_easgd` with an exchange at each step, in rank order."""
  return async_easgd(x0, grad, period=1, **rest)


# ---- peers: board[i] is the model of worker i, and other workers may change it while i computes


def gossip(x0, grad: Grad, order, peers, workers: int, inner: Inner, meet, test=lambda board: sum(board) / len(board)):
  """Apply a worker's change u since its last read with `meet(board, i, j, u)`; then the worker reads its model."""
  board, updates = [x0] * workers, [inner() for _ in range(workers)]
  reported, steps, rows = [x0] * workers, [0] * workers, []
  for i, j in zip(order, peers, strict=True):
    u = updates[i](grad(i, steps[i], reported[i]), reported[i])
    meet(board, i, j, u)
    rows.append((reported[i] + u, test(board)))
    reported[i], steps[i] = board[i], steps[i] + 1
  return history(rows)


def pull_gossip(x0, grad: Grad, *, order, peers, workers: int, inner: Inner) -> History:
  """Jin et al.: x_i <- (x_i + x_j) / 2 after the step of i."""

  def meet(board, i, j, u):
    board[i] = board[i] + u
    if j >= 0:
      board[i] = (board[i] + board[j]) / 2

  return gossip(x0, grad, order, peers, workers, inner, meet)


def push_gossip(x0, grad: Grad, *, order, peers, workers: int, inner: Inner) -> History:
  """Jin et al.: x_j <- (x_j + x_i) / 2 after the step of i."""

  def meet(board, i, j, u):
    board[i] = board[i] + u
    if j >= 0:
      board[j] = (board[j] + board[i]) / 2

  return gossip(x0, grad, order, peers, workers, inner, meet)


def ad_psgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner) -> History:
  """Lian et al.: x_i, x_j <- (x_i + x_j) / 2, then x_i <- x_i - eta g, g from before."""

  def meet(board, i, j, u):
    if j >= 0:
      board[i] = board[j] = (board[i] + board[j]) / 2
    board[i] = board[i] + u

  return gossip(x0, grad, order, peers, workers, inner, meet)


def gosgd(x0, grad: Grad, *, order, peers, workers: int, inner: Inner, probability: float) -> History:
  """Blot et al.: a_i /= 2; x_j <- (a_j x_j + a_i x_i) / (a_i + a_j); a_j += a_i; peers are given."""
  a = [1 / workers] * workers

  def meet(board, i, j, u):
    board[i] = board[i] + u
    if j >= 0:
      a[i] = a[i] / 2
      board[j] = (a[j] * board[j] + a[i] * board[i]) / (a[i] + a[j])
      a[j] = a[j] + a[i]

  def test(board):
    return sum(weight * x for weight, x in zip(a, board, strict=True))

  return gossip(x0, grad, order, peers, workers, inner, meet, test)


TWINS = {
  "async_sgd": async_sgd,
  "async_msgd": async_msgd,
  "hogwild_sgd": hogwild_sgd,
  "async_easgd": async_easgd,
  "async_measgd": async_measgd,
  "hogwild_easgd": async_easgd,  # with a lock they are equal
  "original_easgd": original_easgd,
  "downpour": downpour,
  "dc_asgd": dc_asgd,
  "dynsgd": dynsgd,
  "staleness_aware_sgd": staleness_aware_sgd,
  "ringmaster_asgd": ringmaster_asgd,
  "rennala_sgd": rennala_sgd,
  "async_local_sgd": async_local_sgd,
  "fedbuff": fedbuff,
  "halos": halos,
  "decoupled_diloco": decoupled_diloco,
  "gosgd": gosgd,
  "pull_gossip": pull_gossip,
  "push_gossip": push_gossip,
  "ad_psgd": ad_psgd,
}
