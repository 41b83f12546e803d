"""Averaging with neighbours as NumPy pseudo-code of its paper; see `reference.collective` for the form."""

import numpy as np
from reference.history import History


def mixing_matrix(graph, p, t):
  """W of step t, [p, p], from who hears whom; a path is the matrix in that file."""
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
