"""Algorithms with an outer optimizer as matrices; see `reference.linear`."""

import numpy as np
from reference.linear import Linear, Problem, Rows


def nesterov(r: Rows, rate: float, momentum: float, gradient: dict, row: str = "z", rows: np.ndarray | None = None):
  """m <- mu m + D; z <- z - rate (D + mu m), for terms D that contain neither m nor z."""
  one = r.i if rows is None else rows
  z = {source: -rate * (1 + momentum) * d for source, d in gradient.items()}
  z[row] = z.get(row, 0) + one
  return r(m={"m": momentum * one, **gradient}, **{row: z | {"m": -rate * momentum**2 * one}})


def slowmo(problem: Problem, x0: np.ndarray, *, period: int, slow_rate: float, slow_momentum: float) -> Linear:
  """Wang et al.: u <- beta u + (z - xbar) / gamma; z <- z - alpha gamma u; x_i <- z, gamma the inner rate."""
  r, gamma = Rows(problem, "x v", "z u"), problem.rate
  u = {"u": slow_momentum * r.i, "z": r.i / gamma, "x": -r.mean / gamma}
  moved = r(u=u) @ r.local()
  moved = r(x={"z": r.up}) @ r(z={"z": r.i, "u": -slow_rate * gamma * r.i}) @ moved
  return r.linear([], [r.local()] * (period - 1) + [moved], x0, "x z", {"x": r.I}, {"z": r.i})


def bmuf(
  problem: Problem, x0: np.ndarray, *, period: int, block_learning_rate: float, block_momentum: float, nesterov: bool
) -> Linear:
  """Chen & Huo: u <- eta u + zeta (Wbar - W_g); W <- W + u; the next block starts at W_g = W, or W + eta u."""
  r, ahead = Rows(problem, "x v", "w g u"), block_momentum * nesterov
  u = {"u": block_momentum * r.i, "x": block_learning_rate * r.mean, "g": -block_learning_rate * r.i}
  moved = r(w={"w": r.i, "u": r.i}) @ r(u=u) @ r.local()
  moved = r(x={"g": r.up}) @ r(g={"w": r.i, "u": ahead * r.i}) @ moved
  return r.linear([], [r.local()] * (period - 1) + [moved], x0, "x w g", {"x": r.I}, {"g": r.i})


def diloco(
  problem: Problem, x0: np.ndarray, *, period: int, outer_learning_rate: float, outer_momentum: float
) -> Linear:
  """Douillard et al.: D = mean_i (z - x_i); m <- mu m + D; z <- z - eta_out (D + mu m); x_i <- z."""
  r = Rows(problem, "x v", "z m")
  outer = nesterov(r, outer_learning_rate, outer_momentum, {"z": r.i, "x": -r.mean})
  moved = r(x={"z": r.up}) @ outer @ r.local()
  return r.linear([], [r.local()] * (period - 1) + [moved], x0, "x z", {"x": r.I}, {"z": r.i})


def eager_diloco(
  problem: Problem, x0: np.ndarray, *, period: int, outer_learning_rate: float, outer_momentum: float
) -> Linear:
  """Kale et al.: a worker's own share of D is current, the other shares are one round old."""
  r = Rows(problem, "x v z m new old")
  fresh = r(new={"z": r.I, "x": -r.I})  # D_i(t) = z_i - x_i
  gradient = {"new": r.I / r.p, "old": r.J - r.I / r.p}
  outer = nesterov(r, outer_learning_rate, outer_momentum, gradient, rows=r.I)
  moved = r(x={"z": r.I}, old={"new": r.I}) @ outer @ fresh @ r.local()
  return r.linear([], [r.local()] * (period - 1) + [moved], x0, "x z", {"x": r.I}, {"z": r.mean})


def streaming_diloco(
  problem: Problem,
  x0: np.ndarray,
  *,
  period: int,
  outer_learning_rate: float,
  outer_momentum: float,
  fragments: int,
  delay: int,
  keep: float,
) -> Linear:
  """Two fragments, the first coordinate and the rest, with separate rounds and one step in flight."""
  assert fragments == 2 and delay == 1
  r, half = Rows(problem, "x v", "z m sent"), period // 2
  cycle = [r.local() for _ in range(period)]
  for k, part in enumerate((np.diag(np.eye(r.n)[0]), np.diag(1 - np.eye(r.n)[0]))):
    wide = np.kron(np.eye(r.p), part)
    launch = r(sent={"z": part, "x": -part @ r.mean, "sent": r.i - part})
    rate, mu = outer_learning_rate, outer_momentum
    m = {"m": r.i - (1 - mu) * part, "sent": part}
    z = {"z": r.i, "sent": -rate * (1 + mu) * part, "m": -rate * mu**2 * part}
    mixed = r(x={"x": r.I - (1 - keep) * wide, "z": (1 - keep) * r.up @ part})
    cycle[k * half] = mixed @ r(m=m, z=z) @ cycle[k * half] @ launch
  return r.linear([r.local()] * half, cycle, x0, "x z", {"x": r.I}, {"z": r.i})
