"""Server and gossip algorithms as matrices, for workers that visit in rank order; see `reference.linear`.

A step is a visit. `params` are those of the next worker, at each visit of a cycle (see `asked`).
"""

import numpy as np
from reference.linear import Linear, Problem, Rows


def async_sgd(problem: Problem, x0: np.ndarray, *, shares=(lambda round_, worker: 1)) -> Linear:
  """g at the last reply w_j; v <- mu v + g; z <- z - eta v / divisor; w_j <- z."""
  r, eta, mu = Rows(problem, "w", "z v"), problem.rate, problem.momentum

  def visit(j: int, share: float) -> np.ndarray:
    g = r.one(j) @ r.H
    step = r(v={"v": mu * r.i, "w": g, "one": -r.one(j) @ r.b})
    return r(w={"w": r.I - r.only(j), "z": r.one(j).T}) @ r(z={"z": r.i, "v": -eta / share * r.i}) @ step

  first, cycle = ([visit(j, shares(k, j)) for j in range(r.p)] for k in (0, 1))
  return r.linear(first, cycle, x0, "w z", {"w": r.I}, {"z": r.i})


def staleness_aware_sgd(problem: Problem, x0: np.ndarray) -> Linear:
  """The staleness is the number of updates since the last reply: the rank in the first round, then p - 1."""
  p = len(problem.slopes)
  return async_sgd(problem, x0, shares=lambda k, j: max(p - 1 if k else j, 1))


def async_easgd(problem: Problem, x0: np.ndarray, *, alpha: float) -> Linear:
  """Only for worker j: x_j <- x_j - eta v - alpha (x_j - z); z <- z + alpha (x_j - z), both from before."""
  r, eta, mu, cycle = Rows(problem, "x v", "z"), problem.rate, problem.momentum, []
  for j in range(r.p):
    e = r.only(j)
    cycle.append(
      r(
        v={"v": r.I - (1 - mu) * e, "x": e @ r.H, "one": -e @ r.b},
        x={"x": r.I - alpha * e - eta * e @ r.H, "v": -eta * mu * e, "one": eta * e @ r.b, "z": alpha * r.one(j).T},
        z={"x": alpha * r.one(j), "z": (1 - alpha) * r.i},
      )
    )
  return r.linear([], cycle, x0, "x z", {"x": r.I}, {"z": r.i})


def worker_steps(r: Rows, j: int, period: int, at: str) -> np.ndarray:
  """Local steps of worker j, which also accumulate a <- a + g."""
  e, eta, mu = r.only(j), r.problem.rate, r.problem.momentum
  step = r(
    v={"v": r.I - (1 - mu) * e, at: e @ r.H, "one": -e @ r.b},
    **{at: {at: r.I - eta * e @ r.H, "v": -eta * mu * e, "one": eta * e @ r.b}},
    a={"a": r.I, at: e @ r.H, "one": -e @ r.b},
  )
  return np.linalg.matrix_power(step, period)


def downpour(problem: Problem, x0: np.ndarray, *, period: int) -> Linear:
  """tau local steps; the server's optimizer receives the sum a_j of their gradients; x_j <- z."""
  r, eta, mu, cycle = Rows(problem, "x v a", "z u"), problem.rate, problem.momentum, []
  for j in range(r.p):
    served = r(z={"z": r.i, "u": -eta * r.i}) @ r(u={"u": mu * r.i, "a": r.one(j)}) @ worker_steps(r, j, period, "x")
    cycle.append(r(x={"x": r.I - r.only(j), "z": r.one(j).T}, a={"a": r.I - r.only(j)}) @ served)
  return r.linear([], cycle, x0, "x z", {"x": r.I}, {"z": r.i})


def dynsgd(problem: Problem, x0: np.ndarray, *, period: int) -> Linear:
  """z <- z + (x_j - pulled_j) / (staleness + 1); x_j, pulled_j <- z."""
  r = Rows(problem, "x v a pulled", "z")

  def visit(j: int, share: float) -> np.ndarray:
    served = r(z={"z": r.i, "x": r.one(j) / share, "pulled": -r.one(j) / share}) @ worker_steps(r, j, period, "x")
    take = {"z": r.one(j).T}
    return r(x={"x": r.I - r.only(j)} | take, pulled={"pulled": r.I - r.only(j)} | take) @ served

  first, cycle = ([visit(j, r.p if k else j + 1) for j in range(r.p)] for k in (0, 1))
  return r.linear(first, cycle, x0, "x z pulled", {"x": r.I}, {"z": r.i})


def pull_gossip(problem: Problem, x0: np.ndarray, *, peers: list[int], rule: str = "pull") -> Linear:
  """Worker i sends the change u of its model w_i to the board x, which has all models; peers[i]: its peer."""
  r, cycle = Rows(problem, "w v a x start"), []
  for i, j in enumerate(peers):
    brings = r(x={"x": r.I, "w": r.only(i), "start": -r.only(i)})  # x_i <- x_i + u
    matrix = np.eye(r.p)
    rows = {"pull": [i], "push": [j], "average": [i, j]}[rule]
    for row in rows:
      matrix[row] = (np.eye(r.p)[i] + np.eye(r.p)[j]) / 2
    mixes = r(x={"x": r.mix(matrix)})
    order = mixes @ brings if rule != "average" else brings @ mixes
    back = {"x": r.only(i)}
    took = r(w={"w": r.I - r.only(i)} | back, start={"start": r.I - r.only(i)} | back)
    cycle.append(took @ order @ worker_steps(r, i, 1, "w"))
  return r.linear([], cycle, x0, "w x start", {"w": r.I}, {"x": r.mean})


def push_gossip(problem: Problem, x0: np.ndarray, *, peers: list[int]) -> Linear:
  """x_i <- x_i + u; x_j <- (x_j + x_i) / 2."""
  return pull_gossip(problem, x0, peers=peers, rule="push")


def ad_psgd(problem: Problem, x0: np.ndarray, *, peers: list[int]) -> Linear:
  """x_i, x_j <- (x_i + x_j) / 2; x_i <- x_i + u."""
  return pull_gossip(problem, x0, peers=peers, rule="average")
