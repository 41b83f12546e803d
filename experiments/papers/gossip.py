"""Lian et al. 2017, arXiv 1705.09056: without gradients workers on a graph agree at the rate of its spectral gap.

The matrix W of a round has the eigenvalue 1 for the mean of the workers, which stays; the distance from it shrinks by
the modulus of the second eigenvalue per round, at first faster and then as this.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.algorithms.gossip.d_psgd import d_psgd, matrices
from ddl.as_optax import as_optax
from ddl.engine.consensus import agree
from ddl.group import Group
from ddl.report.figures.picture import png
from ddl.report.figures.style import COLOURS, MARKERS, PAPER, blank
from experiments.papers.page import Config, Section, remarks, table


class Decay(NamedTuple):
  """Of the workers of one graph."""

  predicted: float  # the second largest modulus of an eigenvalue of W; of a cycle: per round
  distances: np.ndarray  # [rounds + 1]: measured


def section(config: Config) -> Section:
  """Predicted and measured shrinking per round."""
  rows = []
  for graph, found in decays(config).items():
    d, last = found.distances, config.rounds
    measured = f"0 after {int(np.argmax(d <= config.zero))} rounds"
    if d[last] > config.zero:
      measured = f"{(d[last] / d[config.settled]) ** (1 / (last - config.settled)):.4f}"
    gap = f"{1 - found.predicted:.4f}"
    rows.append((graph.replace("_", " "), f"{found.predicted:.4f}", gap, measured))
  head = ("graph", "second eigenvalue", "spectral gap", f"measured, rounds {config.settled} to {config.rounds}")
  return Section(
    "Gossip: how soon workers agree", "configs/reproduce_gossip.py", "nothing.", [],
    remarks=[table(head, rows), *remarks("gossip", config=config)], picture=("gossip_decay.png", lambda: draw(config)),
  )  # fmt: skip


def decays(config: Config) -> dict[str, Decay]:
  """Of each graph."""
  return {graph: _decay(graph, config.workers, config.rounds) for graph in config.graphs}


@cache
def _decay(graph: str, workers: int, rounds: int) -> Decay:
  cycle = np.linalg.multi_dot([np.eye(workers), *reversed(matrices(graph, workers)), np.eye(workers)])
  modulus = np.sort(np.abs(np.linalg.eigvals(cycle)))[-2]
  # The fourth root of a rounding error would be 1e-4: a matrix that averages exactly has the eigenvalue 0.
  second = modulus ** (1 / len(matrices(graph, workers))) if modulus > 1e-12 else 0.0
  group, start = Group("worker"), np.random.default_rng(0).normal(size=(workers, 64))
  with jax.enable_x64(True):
    rule = as_optax(d_psgd(optax.sgd(0.1), graph=graph, workers=workers), "worker")

    def worker(x: jax.Array) -> jax.Array:
      def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
        updates, state = rule.update(jnp.zeros_like(carry[0]), *reversed(carry))
        x = optax.apply_updates(carry[0], updates)
        return (x, state), agree(group, x, ())[1]

      found = jax.lax.scan(step, (x, rule.init(x)), None, length=rounds)[1]
      return jnp.concatenate([agree(group, x, ())[1][None], found])

    found = jax.jit(jax.vmap(worker, axis_name="worker"))(jnp.asarray(start))[0]
  return Decay(float(second), np.asarray(found))


def draw(config: Config) -> bytes:
  """Measured distances and predicted slopes, as PNG."""
  return png(lambda: _figure(config))


def _figure(config: Config) -> Any:
  figure = blank((9.6, 4.6))
  axes = figure.subplots()
  for k, (graph, found) in enumerate(decays(config).items()):
    rounds = np.arange(config.rounds + 1)
    d = np.where(found.distances > config.zero, found.distances, np.nan) / found.distances[0]
    last = int(np.flatnonzero(np.isfinite(d))[-1])
    if found.predicted:
      slope = d[last] * found.predicted ** (rounds - last)
      axes.plot(rounds, slope, color=COLOURS[k], linewidth=1.4)
    law = f"{found.predicted:.3f} a round" if found.predicted else f"the mean after {last + 1} rounds"
    label = f"{graph.replace('_', ' ')}: {law}"
    axes.plot(
      rounds, d, MARKERS[k], color=COLOURS[k], markersize=5, markeredgecolor=PAPER, markeredgewidth=0.5, label=label
    )
  axes.set_yscale("log")
  axes.yaxis.set_major_formatter("{x:g}")
  axes.set(xlabel="rounds without gradients", ylabel="distance from the mean, of the start", ylim=(1e-9, 3))
  axes.set_title(f"{config.workers} workers: measured (marks), at the second eigenvalue (lines)", size=12, loc="left")
  axes.grid(True)
  axes.legend(frameon=False, fontsize=10)
  return figure
