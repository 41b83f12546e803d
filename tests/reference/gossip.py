"""Averaging with neighbours as NumPy pseudo-code of its paper; see `reference.collective` for the signature."""

import numpy as np
from reference.history import History


def mixing_matrix(graph, p, t):
  """Return W [p, p] of step t for a graph, or read it from a file."""
  if graph.endswith(".npy"):
    return np.load(graph)
  if graph.endswith((".csv", ".txt")):
    return np.genfromtxt(graph, delimiter="," if graph.endswith("csv") else None).reshape(p, p)
  rows = max(r for r in range(1, p + 1) if r * r <= p and p % r == 0)
  columns = p // rows
  w = np.zeros((p, p))
  for i in range(p):
    r, c = divmod(i, columns)
    if graph == "ring":
      heard = {(i - 1) % p, (i + 1) % p}
    elif graph == "torus":
      heard = {(r - 1) % rows * columns + c, (r + 1) % rows * columns + c}
      heard |= {r * columns + (c - 1) % columns, r * columns + (c + 1) % columns}
    elif graph == "exponential":
      heard = {(i - 2**k) % p for k in range(p) if 2**k < p}
    else:  # one_peer_exponential
      count = int(np.log2(p))
      heard = {(i - 2 ** (t % count)) % p} if count else set()
    heard |= {i}
    for j in heard:
      w[i, j] = 1 / len(heard)
  return w


def d_psgd(x0, grad, *, workers, steps, inner, graph):
  """Lian et al.: x_i(k+1) = sum_j W_ij x_j(k) - eta g_i(x_i(k))."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    w, before = mixing_matrix(graph, workers, t), x.copy()
    for i in range(workers):
      x[i] = sum(w[i, j] * before[j] for j in range(workers)) + updates[i](grad(i, t, before[i]), before[i])
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def sgp(x0, grad, *, workers, steps, inner, rounds=None):
  """Assran et al., algorithm 1: push x and w along the edges of P; gradients are computed at z = x / w."""
  x, w, params, evaluate = np.array([x0] * workers), np.ones(workers), [], []
  z, updates, rounds = x.copy(), [inner() for _ in range(workers)], rounds or pushes(workers)
  for t in range(steps):
    half = x.copy()
    for i in range(workers):
      half[i] = x[i] + updates[i](grad(i, t, z[i]), z[i])
    p = rounds[t % len(rounds)]
    for i in range(workers):
      x[i] = sum(p[i, j] * half[j] for j in range(workers))
    w = np.array([sum(p[i, j] * w[j] for j in range(workers)) for i in range(workers)])
    z = x / w[:, None]
    params.append(z.copy())
    evaluate.append(sum(z) / workers)
  return History(np.array(params), np.array(evaluate))


def overlap_sgp(x0, grad, *, workers, steps, inner, overlap, rounds=None):
  """Assran et al., algorithm 2: messages are sent before every tau-th step and added tau steps later."""
  x, w, params, evaluate = np.array([x0] * workers), np.ones(workers), [], []
  z, updates, rounds = x.copy(), [inner() for _ in range(workers)], rounds or pushes(workers)
  sent = None
  for t in range(steps):
    if t % overlap == 0:
      p = rounds[t // overlap % len(rounds)]
      sent = [(p[i, j], i, x[j].copy(), w[j]) for i in range(workers) for j in range(workers) if i != j]
      for i in range(workers):
        x[i], w[i] = p[i, i] * x[i], p[i, i] * w[i]
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, z[i]), z[i])
    if (t + 1) % overlap == 0:
      for share, i, x_j, w_j in sent:
        x[i], w[i] = x[i] + share * x_j, w[i] + share * w_j
    z = x / w[:, None]
    params.append(z.copy())
    evaluate.append(sum(z) / workers)
  return History(np.array(params), np.array(evaluate))


def pushes(p):
  """Return P of each round on the one-peer exponential graph: j sends half to j + 2^k."""
  result, k = [], 0
  while 2**k < p:
    result.append(np.zeros((p, p)))
    for j in range(p):
      result[-1][j, j] += 0.5
      result[-1][(j + 2**k) % p, j] += 0.5
    k += 1
  return result or [np.eye(p)]
