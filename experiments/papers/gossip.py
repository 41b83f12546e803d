"""Lian et al. 2017, arXiv 1705.09056: without gradients, the spectral gap of a graph sets its workers' consensus rate.

The mixing matrix W of a round preserves the mean of the workers (eigenvalue 1). Each round asymptotically multiplies
the distance from the mean by the second largest modulus of the eigenvalues of W.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.algorithms.gossip.d_psgd import d_psgd
from ddl.algorithms.gossip.graphs import matrices
from ddl.as_optax import as_optax
from ddl.engine.consensus import agree
from ddl.group import Group
from ddl.report.figure import COLOURS, png
from experiments.papers import page
from experiments.papers.page import Config, Section


class Decay(NamedTuple):
  """The decay of the workers' distance from their mean on one graph.

  The predicted factor per round is the second largest modulus of the eigenvalues of W. For a cycle of n matrices, it is
  the n-th root of this modulus of their product.
  """

  predicted: float  # factor per round
  distances: np.ndarray  # [rounds + 1], measured


def section(config: Config) -> Section:
  """Build the section: the predicted and the measured decay per round."""
  measured = {}
  for graph, rates in decays(config).items():
    d, last = rates.distances, config.rounds
    measured[graph] = f"0 after {int(np.argmax(d <= config.zero))} rounds"
    if d[last] > config.zero:
      measured[graph] = f"{(d[last] / d[config.settled]) ** (1 / (last - config.settled)):.4f}"
  return page.read("gossip", picture=lambda: draw(config), config=config, decays=decays(config), measured=measured)


def decays(config: Config) -> dict[str, Decay]:
  """Measure and predict the decay on each graph; return graph -> `Decay`."""
  return {graph: _decay(graph, config.workers, config.rounds) for graph in config.graphs}


@cache
def _decay(graph: str, workers: int, rounds: int) -> Decay:
  cycle = np.linalg.multi_dot([np.eye(workers), *reversed(matrices("d_psgd", graph, workers)), np.eye(workers)])
  modulus = np.sort(np.abs(np.linalg.eigvals(cycle)))[-2]
  # The product of the matrices can average exactly: without the threshold, the root of a rounding error would be 1e-4.
  second = modulus ** (1 / len(matrices("d_psgd", graph, workers))) if modulus > 1e-12 else 0.0
  group, start = Group("worker"), np.random.default_rng(0).normal(size=(workers, 64))
  with jax.enable_x64(True):
    rule = as_optax(d_psgd(optax.sgd(0.1), graph=graph, workers=workers), "worker")

    def worker(x: jax.Array) -> jax.Array:
      def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
        updates, state = rule.update(jnp.zeros_like(carry[0]), *reversed(carry))
        x = optax.apply_updates(carry[0], updates)
        return (x, state), agree(group, x, ())[1]

      distances = jax.lax.scan(step, (x, rule.init(x)), None, length=rounds)[1]
      return jnp.concatenate([agree(group, x, ())[1][None], distances])

    distances = jax.jit(jax.vmap(worker, axis_name="worker"))(jnp.asarray(start))[0]
  return Decay(float(second), np.asarray(distances))


def draw(config: Config) -> bytes:
  """Draw measured distances and predicted slopes; return a PNG file."""
  import altair as alt
  import pandas as pd

  points, lines = [], []
  for graph, rates in decays(config).items():
    rounds = np.arange(config.rounds + 1)
    d = np.where(rates.distances > config.zero, rates.distances, np.nan) / rates.distances[0]
    last = int(np.flatnonzero(np.isfinite(d))[-1])
    law = f"{rates.predicted:.3f} per round" if rates.predicted else f"exact mean after {last + 1} rounds"
    label = f"{graph.replace('_', ' ')}: {law}"
    points.append(pd.DataFrame({"graph": label, "rounds": rounds, "distance": d}).dropna())
    if rates.predicted:
      slope = d[last] * rates.predicted ** (rounds - last)
      lines.append(pd.DataFrame({"graph": label, "rounds": rounds, "distance": slope}))
  y = alt.Y("distance:Q", title="distance from the mean, relative to start", axis=alt.Axis(format="~g", tickCount=9),
            scale=alt.Scale(type="log", domain=[1e-9, 3], nice=False))  # fmt: skip
  x = alt.X("rounds:Q", title="rounds without gradients", scale=alt.Scale(nice=False))
  labels = [str(frame["graph"].iloc[0]) for frame in points]
  colours = alt.Scale(domain=labels, range=COLOURS[: len(labels)])
  shape = alt.Shape("graph:N", scale=alt.Scale(domain=labels))
  base = alt.Chart().encode(
    x=x, y=y, color=alt.Color("graph:N", scale=colours, legend=alt.Legend(orient="bottom", columns=3))
  )
  drawn = alt.layer(
    base.mark_line(strokeWidth=1.4, clip=True).properties(data=alt.NamedData("lines")),
    base.mark_point(size=30, filled=True, clip=True).encode(shape=shape).properties(data=alt.NamedData("points")),
  )
  title = f"{config.workers} workers: measured (marks), slope of the second eigenvalue (lines)"
  return png(drawn.properties(width=630, height=300, title=title), points=pd.concat(points), lines=pd.concat(lines))
