"""The collective algorithms as matrices; see `reference.linear`. The inner optimizer may have momentum."""

from itertools import pairwise

import numpy as np
from reference.gossip import mixing_matrix
from reference.linear import Linear, Problem, Rows


def independent(problem: Problem, x0: np.ndarray) -> Linear:
  r = Rows(problem, "x v")
  return r.linear([], [r.local()], x0, "x", {"x": r.I}, {"x": r.mean})


def sync_sgd(problem: Problem, x0: np.ndarray) -> Linear:
  """One model with the mean of all gradients, (1/p) sum_i (A_i x - b_i)."""
  r, eta, mu = Rows(problem, "", "x v"), problem.rate, problem.momentum
  h, b = r.mean @ r.H @ r.up, r.mean @ r.b
  x = {"x": r.i - eta * h, "v": -eta * mu * r.i, "one": eta * b}
  return r.linear([], [r(v={"v": mu * r.i, "x": h, "one": -b}, x=x)], x0, "x", {"x": r.up}, {"x": r.i})


def pipe_sgd(problem: Problem, x0: np.ndarray, *, width: int) -> Linear:
  """Li et al.: x(t+1) = x(t) - eta g(x(t-K+1)): a companion matrix of the K - 1 gradients in flight."""
  flight = [f"g{k}" for k in range(width - 1)]
  r, eta, mu = Rows(problem, "", " ".join(["x v", *flight])), problem.rate, problem.momentum
  step = r(
    g0={"x": r.mean @ r.H @ r.up, "one": -r.mean @ r.b},
    **{new: {old: r.i} for old, new in pairwise(flight)},
    v={"v": mu * r.i, flight[-1]: r.i},
    x={"x": r.i, "v": -eta * mu * r.i, flight[-1]: -eta * r.i},
  )
  return r.linear([], [step], x0, "x", {"x": r.up}, {"x": r.i})


def local_sgd(problem: Problem, x0: np.ndarray, *, period: int) -> Linear:
  r = Rows(problem, "x v")
  cycle = [r.local()] * period
  cycle[-1] = r(x={"x": r.J}) @ cycle[-1]
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def post_local_sgd(problem: Problem, x0: np.ndarray, *, period: int, start: int) -> Linear:
  r = Rows(problem, "x v")
  return local_sgd(problem, x0, period=period)._replace(first=[r(x={"x": r.J}) @ r.local()] * start)


def adaptive_local_sgd(problem: Problem, x0: np.ndarray, *, periods: tuple[tuple[int, int], ...]) -> Linear:
  """Wang & Joshi; the period of the last pair begins with the first average at or after its step."""
  averages, t = [], 0
  while t < periods[-1][0]:
    t += next(period for start, period in reversed(periods) if start <= t)
    averages.append(t)
  r = Rows(problem, "x v")
  first = [r(x={"x": r.J}) @ r.local() if step in averages else r.local() for step in range(1, t + 1)]
  return local_sgd(problem, x0, period=periods[-1][1])._replace(first=first)


def hierarchical_sgd(problem: Problem, x0: np.ndarray, *, group_size: int, period: int, outer_period: int) -> Linear:
  r = Rows(problem, "x v")
  cycle = [r.local() for _ in range(outer_period)]
  group = np.kron(np.eye(r.p // group_size), np.full((group_size, group_size), 1 / group_size))
  for t in range(period - 1, outer_period, period):
    cycle[t] = r(x={"x": r.mix(group)}) @ cycle[t]
  cycle[-1] = r(x={"x": r.J}) @ cycle[-1]
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def fedavg(problem: Problem, x0: np.ndarray, *, period: int, share: float) -> Linear:
  """All workers take the mean and a new optimizer."""
  assert share == 1
  r = Rows(problem, "x v")
  cycle = [r.local()] * period
  cycle[-1] = r(x={"x": r.J}, v={"v": 0 * r.I}) @ cycle[-1]
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def scaffold(problem: Problem, x0: np.ndarray, *, period: int, share: float, server_rate: float) -> Linear:
  """Karimireddy et al., option II with plain SGD for all workers: c_i <- c_i - c + (x - y_i) / (tau eta)."""
  assert share == 1 and not problem.momentum
  r, eta = Rows(problem, "y c", "x all"), problem.rate
  step = r(y={"y": r.I - eta * r.H, "one": eta * r.b, "c": eta * r.I, "all": -eta * r.up})
  k = 1 / (period * eta)
  own = {"c": r.I, "all": -r.up, "x": k * r.up, "y": -k * r.I}  # c_i'
  x = {"x": (1 - server_rate) * r.i, "y": server_rate * r.mean}
  everybody = {"x": k * r.i, "y": -k * r.mean}  # c + mean_i (c_i' - c_i), as c is the mean of the c_i
  end = r(c=own, all=everybody, x=x, y={row: r.up @ matrix for row, matrix in x.items()})
  return r.linear([], [step] * (period - 1) + [end @ step], x0, "x y", {"y": r.I}, {"x": r.i})


def dasgd(problem: Problem, x0: np.ndarray, *, period: int, delay: int, keep: float) -> Linear:
  """Zhou et al.: the mean at the end of a round is blended after step d of the next round."""
  r = Rows(problem, "x v", "sent")
  cycle = [r.local() for _ in range(period)]
  cycle[0] = cycle[0] @ r(sent={"x": r.mean})
  cycle[delay - 1] = r(x={"x": keep * r.I, "sent": (1 - keep) * r.up}) @ cycle[delay - 1]
  return r.linear([r.local()] * period, cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def cocod(problem: Problem, x0: np.ndarray, *, period: int) -> Linear:
  r = Rows(problem, "x v before", "sent")
  cycle = [r.local() for _ in range(period)]
  cycle[0] = cycle[0] @ r(sent={"x": r.mean}, before={"x": r.I})
  cycle[-1] = r(x={"x": r.I, "before": -r.I, "sent": r.up}) @ cycle[-1]
  return r.linear([r.local()] * period, cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def overlap_local_sgd(problem: Problem, x0: np.ndarray, *, period: int, pull: float, momentum: float) -> Linear:
  """Wang et al.: u <- beta u + z - xbar; z <- z - u; x_i <- (1 - alpha) x_i + alpha z, xbar one round old."""
  r = Rows(problem, "x v", "z u sent")
  cycle = [r.local() for _ in range(period)]
  cycle[0] = cycle[0] @ r(sent={"x": r.mean})
  anchor = r(u={"u": momentum * r.i, "z": r.i, "sent": -r.i}, z={"u": -momentum * r.i, "sent": r.i})
  cycle[-1] = r(x={"x": (1 - pull) * r.I, "z": pull * r.up}) @ anchor @ cycle[-1]
  return r.linear([], cycle, x0, "x z", {"x": r.I}, {"x": r.mean})


def easgd(problem: Problem, x0: np.ndarray, *, alpha: float, period: int, momentum: float = 0.0) -> Linear:
  """x_i <- x_i - eta v - alpha (x_i - z); z <- z + alpha sum_i (x_i - z); with a momentum: SMA."""
  r = Rows(problem, "x v", "z old")
  pulled = {"x": alpha * r.sum, "z": (1 - r.p * alpha + momentum) * r.i, "old": -momentum * r.i}
  both = r(**r.step(x=-alpha * r.I, z=alpha * r.up), z=pulled, old={"z": r.i})
  return r.linear([], [both] + [r.local()] * (period - 1), x0, "x z old", {"x": r.I}, {"z": r.i})


sma = easgd


def eamsgd(problem: Problem, x0: np.ndarray, *, alpha: float, momentum: float, period: int) -> Linear:
  """v <- delta v - eta g(x + delta v); x <- x + v - alpha (x - z), with plain inner SGD."""
  assert not problem.momentum
  r, eta = Rows(problem, "x v", "z"), problem.rate
  v = {"v": momentum * (r.I - eta * r.H), "x": -eta * r.H, "one": eta * r.b}
  alone = r(v=v, x=v | {"x": r.I - eta * r.H})
  z = {"x": alpha * r.sum, "z": (1 - r.p * alpha) * r.i}
  both = r(v=v, x=v | {"x": (1 - alpha) * r.I - eta * r.H, "z": alpha * r.up}, z=z)
  params = {"x": r.I, "v": momentum * r.I}
  return r.linear([], [both] + [alone] * (period - 1), x0, "x z", params, {"z": r.i})


def round_robin_easgd(problem: Problem, x0: np.ndarray, *, alpha: float) -> Linear:
  r = Rows(problem, "x v", "z")
  cycle = []
  for j in range(r.p):
    lines = r.step(x=-alpha * r.only(j), z=alpha * r.one(j).T)
    cycle.append(r(**lines, z={"x": alpha * r.one(j), "z": (1 - alpha) * r.i}))
  return r.linear([], cycle, x0, "x z", {"x": r.I}, {"z": r.i})


def d_psgd(problem: Problem, x0: np.ndarray, *, graph: str) -> Linear:
  """Lian et al.: M = W x I - eta H."""
  r, cycle = Rows(problem, "x v"), []
  for t in range({"one_peer_exponential": r.p.bit_length() - 1}.get(graph, 1)):
    cycle.append(r(**r.step(x=r.mix(mixing_matrix(graph, r.p, t)) - r.I)))
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def sgp(problem: Problem, x0: np.ndarray) -> Linear:
  """Assran et al. on doubly stochastic P: the weights stay 1."""
  r = Rows(problem, "x v")
  cycle = [r(x={"x": r.mix(mixing_matrix("one_peer_exponential", r.p, t))}) @ r.local() for t in range(2)]
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def overlap_sgp(problem: Problem, x0: np.ndarray, *, overlap: int) -> Linear:
  """Assran et al.; half of x_i is in flight, so w_i = 1/2 and gradients are computed at z_i = 2 x_i."""
  r = Rows(problem, "x v z sent")
  step = r(z={"x": 2 * r.I}) @ r.local(at="z")
  cycle = []
  for t in range(2):
    half = r.mix(mixing_matrix("one_peer_exponential", r.p, t) - np.eye(r.p) / 2)
    cycle += [step for _ in range(overlap)]
    cycle[-overlap] = cycle[-overlap] @ r(sent={"x": half}, x={"x": r.I / 2}, z={"x": r.I})
    cycle[-1] = r(z={"x": r.I}) @ r(x={"x": r.I, "sent": r.I}) @ cycle[-1]
  return r.linear([], cycle, x0, "x z", {"z": r.I}, {"z": r.mean})


def gradient_tracking(problem: Problem, x0: np.ndarray, *, graph: str) -> Linear:
  """Pu and Nedic: y <- W y + g - g_old; x <- W x - eta v, v <- mu v + y."""
  r, eta, mu, cycle = Rows(problem, "x v y g"), problem.rate, problem.momentum, []
  for t in range(2):
    w = r.mix(mixing_matrix(graph, r.p, t))
    g = {"x": r.H, "one": -r.b}
    y = g | {"y": w, "g": -r.I}
    v = y | {"v": mu * r.I}
    x = {source: -eta * matrix for source, matrix in v.items()}
    cycle.append(r(g=g, y=y, v=v, x=x | {"x": w + x["x"]}))
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def exact_diffusion(problem: Problem, x0: np.ndarray, *, graph: str, consensus_rate: float) -> Linear:
  """Yuan et al.: with psi = x - eta v, x <- Wbar (psi + x - psi_old)."""
  r, cycle = Rows(problem, "x v psi"), []
  for t in range(2):
    w = r.mix((1 - consensus_rate) * np.eye(r.p) + consensus_rate * mixing_matrix(graph, r.p, t))
    lines = r.step()
    psi = lines["x"]
    phi = psi | {"x": psi["x"] + r.I, "psi": -r.I}
    cycle.append(r(v=lines["v"], psi=psi, x={source: w @ matrix for source, matrix in phi.items()}))
  return r.linear([], cycle, x0, "x psi", {"x": r.I}, {"x": r.mean})


def quasi_global_momentum(
  problem: Problem, x0: np.ndarray, *, graph: str, momentum: float, buffer_decay: float
) -> Linear:
  """Lin et al. with Nesterov momentum; m is in units of the models, as for a rate without a record."""
  r, cycle = Rows(problem, "x v m"), []
  for t in range(2):
    w, lines = r.mix(mixing_matrix(graph, r.p, t)), r.step()
    change = lines["x"] | {"x": lines["x"]["x"] - r.I}  # -eta v
    half = {source: (1 + momentum) * matrix for source, matrix in change.items()}
    half |= {"x": half["x"] + r.I, "m": -(momentum**2) * r.I}
    x = {source: w @ matrix for source, matrix in half.items()}
    m = {source: -(1 - buffer_decay) * matrix for source, matrix in x.items()}
    m |= {"x": m["x"] + (1 - buffer_decay) * r.I, "m": m["m"] + buffer_decay * r.I}
    cycle.append(r(v=lines["v"], m=m, x=x))
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})


def gossip_pga(problem: Problem, x0: np.ndarray, *, graph: str, period: int) -> Linear:
  """Chen et al.: D-PSGD with a mean after every tau-th step."""
  cycle = d_psgd(problem, x0, graph=graph).cycle * period
  r = Rows(problem, "x v")
  for t in range(period - 1, len(cycle), period):
    cycle[t] = r(x={"x": r.J}) @ cycle[t]
  return r.linear([], cycle, x0, "x", {"x": r.I}, {"x": r.mean})
