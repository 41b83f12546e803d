"""Gossip for workers with different data, in NumPy; see `reference.collective` for the signature."""

import numpy as np
from reference.compression import PARTS
from reference.gossip import mixing_matrix
from reference.history import History


def mix(w, rows):
  """Return sum_j W_ij row_j for each i."""
  return np.array([sum(w[i, j] * rows[j] for j in range(len(rows))) for i in range(len(rows))])


def gradient_tracking(x0, grad, *, workers, steps, inner, graph, adapt_first):
  """Pu & Nedic: y_i(0) = g_i(0); x(t+1) = W x(t) - eta y(t); y(t+1) = W y(t) + g(t+1) - g(t). ATC: W (x - eta y)."""
  x, y, params, evaluate = np.array([x0] * workers), np.zeros((workers, len(x0))), [], []
  updates, g = [inner() for _ in range(workers)], None
  for t in range(steps):
    before, g = g, np.array([grad(i, t, x[i]) for i in range(workers)])
    mixed = 0 if before is None else mix(mixing_matrix(graph, workers, t - 1 if adapt_first else t), y) - before
    y = mixed + g  # in ATC, y is mixed together with the models of the step before
    w, u = mixing_matrix(graph, workers, t), np.array([updates[i](y[i], x[i]) for i in range(workers)])
    x = mix(w, x + u) if adapt_first else mix(w, x) + u
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def exact_diffusion(x0, grad, *, workers, steps, inner, graph, consensus_rate):
  """Yuan et al.: psi = x + u; phi = psi + x - psi_old; x <- ((1 - gamma) I + gamma W) phi; psi_old(0) = x(0)."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates, psi_old = [inner() for _ in range(workers)], x.copy()
  for t in range(steps):
    w = (1 - consensus_rate) * np.eye(workers) + consensus_rate * mixing_matrix(graph, workers, t)
    psi = np.array([x[i] + updates[i](grad(i, t, x[i]), x[i]) for i in range(workers)])
    x, psi_old = mix(w, psi + x - psi_old), psi
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def quasi_global_momentum(
  x0, grad, *, workers, steps, inner, graph, momentum, buffer_decay, nesterov, rate=lambda step: 1.0
):
  """Lin et al.: d = g + beta m, or g + beta (g + beta m); x <- W (x - eta d); m <- mu m + (1-mu) (x_old - x) / eta.

  rate: eta of a step; -eta g is the update of the inner optimizer.
  """
  x, params, evaluate = np.array([x0] * workers), [], []
  updates, m = [inner() for _ in range(workers)], np.zeros_like(x)
  for t in range(steps):
    half = x.copy()
    for i in range(workers):
      descent = -updates[i](grad(i, t, x[i]), x[i])  # eta g
      plain = descent + rate(t) * momentum * m[i]
      half[i] = x[i] - (descent + momentum * plain if nesterov else plain)
    old, x = x, mix(mixing_matrix(graph, workers, t), half)
    m = buffer_decay * m + ((1 - buffer_decay) * (old - x) / rate(t) if rate(t) else 0.0)
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def choco_sgd(x0, grad, *, workers, steps, inner, graph, compressor, share, consensus_rate, adapt_first):
  """Koloskova et al., with the copies of all workers, for each matrix of the graph, instead of their weighted sum."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  rounds = int(np.log2(workers)) if graph == "one_peer_exponential" and workers > 1 else 1
  copies = np.zeros((rounds, *x.shape))

  def publish(t):
    for i in range(workers):
      copies[t % rounds, i] += compressed(x[i] - copies[t % rounds, i], compressor, share)

  def gossip(t):
    w, known = mixing_matrix(graph, workers, t), copies[t % rounds]
    for i in range(workers):
      x[i] = x[i] + consensus_rate * sum(w[i, j] * (known[j] - known[i]) for j in range(workers))

  for t in range(steps):
    if not adapt_first and t:  # the authors' code publishes at the end of the step before, to be mixed in this one
      publish(t - 1)
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    if adapt_first:
      publish(t)
      gossip(t)
    elif t:
      gossip(t - 1)
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def relay_sgd(x0, grad, *, workers, steps, inner, tree):
  """Vogels et al., algorithm 1, with x_i for the models that have not arrived, as in the authors' code."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  neighbors = {i: [] for i in range(workers)}
  for i in range(1, workers):
    parent = i - 1 if tree == "chain" else (i - 1) // 2
    neighbors[i].append(parent)
    neighbors[parent].append(i)
  message, count = {}, {}  # (sender, receiver) -> sum of models, their number
  for t in range(steps):
    for i in range(workers):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    new, new_count = {}, {}
    for i in range(workers):
      for j in neighbors[i]:
        new[i, j] = x[i] + sum(message.get((k, i), 0.0) for k in neighbors[i] if k != j)
        new_count[i, j] = 1 + sum(count.get((k, i), 0) for k in neighbors[i] if k != j)
    message, count = new, new_count
    for i in range(workers):
      missing = workers - sum(count[j, i] for j in neighbors[i])
      x[i] = (missing * x[i] + sum(message[j, i] for j in neighbors[i])) / workers
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def gossip_pga(x0, grad, *, workers, steps, inner, graph, period):
  """Chen et al.: D-PSGD; after every tau-th step all workers take the mean."""
  x, params, evaluate = np.array([x0] * workers), [], []
  updates = [inner() for _ in range(workers)]
  for t in range(steps):
    u = np.array([updates[i](grad(i, t, x[i]), x[i]) for i in range(workers)])
    x = mix(mixing_matrix(graph, workers, t), x) + u
    if (t + 1) % period == 0:
      x = np.array([sum(x) / workers] * workers)
    params.append(x.copy())
    evaluate.append(sum(x) / workers)
  return History(np.array(params), np.array(evaluate))


def compressed(v, compressor, share):
  """Return C(v): per array, the mean magnitude with the signs, or the k values of the largest magnitude."""
  out = np.zeros_like(v)
  for part in PARTS:
    values = v[part]
    if compressor == "sign":
      out[part] = np.abs(values).mean() * np.where(values < 0, -1, 1)
    else:
      largest = np.argsort(-np.abs(values))[: max(1, round(share * len(values)))]
      out[part][largest] = values[largest]
  return out
