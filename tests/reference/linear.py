"""Algorithms on quadratics as matrices that act on the stacked models of all workers.

The gradient of f_i(x) = x^T A_i x / 2 - b_i^T x is affine, hence so is a step of each linear algorithm. A state is a
vector of named rows, such as x (n coordinates per worker) and z (n coordinates, shared); its last coordinate is 1 and
multiplies the constants. This file uses neither JAX nor ddl.
"""

from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
  """Quadratics f_i(x) = x^T A_i x / 2 - b_i^T x and the optimizer v <- mu v + g, x <- x - eta v."""

  curvatures: np.ndarray  # A: [workers, n, n], symmetric and positive
  slopes: np.ndarray  # b: [workers, n]
  rate: float  # eta
  momentum: float  # mu


Lines = dict[str, dict[str, np.ndarray]]  # row -> source -> matrix


class Linear(NamedTuple):
  """An algorithm as affine maps z <- M z + b, one per step, in homogeneous coordinates: [size, size] each."""

  start: np.ndarray  # [size]
  first: list[np.ndarray]  # of the steps before the cycle
  cycle: list[np.ndarray]  # of the steps that repeat
  params: np.ndarray  # [workers n, size]
  evaluate: np.ndarray  # [n, size]: the evaluated model

  def after(self, cycles: int, steps: int = 0) -> np.ndarray:
    """Return the state after the first steps, a number of cycles and some steps of the next cycle."""
    power = np.linalg.matrix_power(product(self.cycle), cycles)
    return product([np.eye(len(self.start)), *self.first, power, *self.cycle[:steps]]) @ self.start


def product(maps: list[np.ndarray]) -> np.ndarray:
  """Return the matrix of all maps, applied in order."""
  out = maps[0]
  for matrix in maps[1:]:
    out = matrix @ out
  return out


class Rows:
  """The named rows of a state; a call returns the map that replaces some rows and leaves the others unchanged."""

  def __init__(self, problem: Problem, workers: str, shared: str = ""):
    """Set the names of rows per worker and of shared rows, separated by blanks."""
    self.p, self.n, self.problem = *problem.slopes.shape, problem
    sizes = {**dict.fromkeys(workers.split(), self.p * self.n), **dict.fromkeys(shared.split(), self.n), "one": 1}
    ends = np.cumsum(list(sizes.values()))
    self.size, self.at = int(ends[-1]), {k: slice(e - s, e) for (k, s), e in zip(sizes.items(), ends, strict=True)}
    self.I, self.i = np.eye(self.p * self.n), np.eye(self.n)
    self.up = np.kron(np.ones((self.p, 1)), self.i)  # z for every worker
    self.sum = self.up.T  # sum_i x_i
    self.mean = self.sum / self.p
    self.J = self.up @ self.mean  # every worker's x is the mean
    self.H = np.zeros((self.p * self.n, self.p * self.n))  # diag(A_1, ..., A_p)
    for i, curvature in enumerate(problem.curvatures):
      self.H[i * self.n : (i + 1) * self.n, i * self.n : (i + 1) * self.n] = curvature
    self.b = problem.slopes.reshape(-1, 1)

  def __call__(self, **lines: dict[str, np.ndarray]) -> np.ndarray:
    """Return the map row <- the sum of matrices times their sources; row={source: matrix, ...}."""
    created = np.eye(self.size)
    for row, terms in lines.items():
      created[self.at[row]] = self.read(**terms)
    return created

  def read(self, **terms: np.ndarray) -> np.ndarray:
    """Return the sum of matrices times their sources as one matrix [., size]."""
    created = np.zeros((len(next(iter(terms.values()))), self.size))
    for source, matrix in terms.items():
      created[:, self.at[source]] += matrix
    return created

  def mix(self, matrix: np.ndarray) -> np.ndarray:
    """Return the matrix of sum_j W_ij x_j: [workers n, workers n]."""
    return np.kron(matrix, self.i)

  def only(self, worker: int) -> np.ndarray:
    """Return the matrix that keeps x_i of one worker and sets the others to 0."""
    return self.mix(np.diag(np.eye(self.p)[worker]))

  def one(self, worker: int) -> np.ndarray:
    """Return the matrix that selects x_i of one worker: [n, workers n]; its transpose inserts z."""
    return np.kron(np.eye(self.p)[worker], self.i)

  def local(self, at: str = "x") -> np.ndarray:
    """Return the rows of v <- mu v + H x - b; x <- x - eta v, with the gradient at the rows `at`."""
    return self(**self.step(at))

  def step(self, at: str = "x", **more: np.ndarray) -> Lines:
    """Return the map of `local` with the terms `more` added to x."""
    eta, mu = self.problem.rate, self.problem.momentum
    x = {"x": self.I, "v": -eta * mu * self.I, "one": eta * self.b}
    for source, matrix in ((at, -eta * self.H), *more.items()):
      x[source] = x.get(source, 0) + matrix
    return {"v": {"v": mu * self.I, at: self.H, "one": -self.b}, "x": x}

  def linear(self, first: list, cycle: list, x0: np.ndarray, begins: str, params: dict, evaluate: dict) -> Linear:
    """Return a `Linear`; the rows `begins` start at x0, others at 0; params, evaluate: terms as in `read`."""
    start = np.zeros(self.size)
    start[-1] = 1
    for row in begins.split():
      start[self.at[row]] = np.resize(x0, start[self.at[row]].shape)
    return Linear(start, first, cycle, self.read(**params), self.read(**evaluate))
