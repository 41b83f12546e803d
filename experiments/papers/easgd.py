"""Zhang et al. 2014, arXiv 1412.6651: stability region of EASGD, as published and as measured on ddl's algorithms.

On f(x) = h x^2 / 2, a round of EASGD applies a linear map M to the models of the p workers and the center. M is
measured by running one round of the algorithm from each unit vector. A round is stable if the spectral radius of M is
at most 1. In the code, `eta` stands for eta h.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.algorithms.collective.easgd import easgd
from ddl.algorithms.collective.round_robin_easgd import round_robin_easgd
from ddl.algorithms.server.original_easgd import original_easgd
from ddl.api import Algorithm, Visit
from ddl.as_optax import as_optax
from ddl.report.figure import COLOURS, INK, png
from experiments.papers import page
from experiments.papers.page import Config, Section

STABLE = 1 + 1e-9  # largest stable spectral radius; on the boundary it is 1 up to rounding
TITLES = {
  "original_easgd": "Original EASGD, {} workers, round robin",
  "round_robin_easgd": "all {} step, one exchanges with the center",
  "easgd": "Sync EASGD, {} workers",
}


def published(eta: Any) -> Any:
  """Return the largest stable alpha of the round-robin scheme: (4 - 2 eta) / (4 - eta), for 0 <= eta <= 2."""
  return (4 - 2 * eta) / (4 - eta)


def synchronous(eta: Any, workers: int) -> Any:
  """Return the largest stable alpha of Sync EASGD: (4 - 2 eta) / (2 (p + 1) - p eta), for 0 <= eta <= 2.

  Derived here: a round maps the workers' mean and the center by
  M = [[1 - eta - alpha, alpha], [p alpha, 1 - p alpha]], which is stable if det(M + I) >= 0. A round multiplies the
  differences between workers by 1 - eta - alpha, which gives a weaker condition.
  """
  return (4 - 2 * eta) / (2 * (workers + 1) - workers * eta)


def radii(name: str, workers: int, etas: np.ndarray, alphas: np.ndarray) -> np.ndarray:
  """Return the spectral radii [etas, alphas] of the map of a round: p steps, or one step of Sync EASGD."""
  with jax.enable_x64(True):
    if name == "original_easgd":
      rounds = np.stack([_server_round(workers, etas, float(alpha)) for alpha in alphas], axis=1)
    else:
      rounds = np.asarray(_collective_round(name, workers)(jnp.asarray(etas), jnp.asarray(alphas)))
  return np.abs(np.linalg.eigvals(rounds)).max(axis=-1)


def _server_round(workers: int, etas: np.ndarray, alpha: float) -> np.ndarray:
  """Return M [etas, p + 1, p + 1] of a round in which a server serves the workers in order of rank.

  Each coordinate of the parameters is an independent run from one unit vector.
  """
  algorithm = original_easgd(optax.sgd(1.0), alpha=alpha, workers=workers)
  rate = jnp.asarray(etas)[:, None]
  unit = jnp.broadcast_to(jnp.eye(workers + 1), (len(etas), workers + 1, workers + 1))
  models, center = [unit[:, i] for i in range(workers)], unit[:, workers]
  for i, x in enumerate(models):
    state = algorithm.init(x)[0]
    visit = Visit(np.int32(i), np.int32(-1))
    center, reply = algorithm.serve(center, algorithm.request(state, x), visit)
    models[i], state = algorithm.local(rate * x, state, x)  # the gradient at x, while the exchange is in flight
    models[i], state = algorithm.merge(reply, state, models[i])
  return np.stack([*models, center], axis=1)


@cache
def _collective_round(name: str, workers: int) -> Any:
  """Compile the function (etas, alphas) -> M [etas, alphas, p + 1, p + 1] of a collective algorithm."""
  unit, steps = jnp.eye(workers + 1), workers if name == "round_robin_easgd" else 1

  def one(eta: Any, alpha: Any) -> jax.Array:
    inner = optax.sgd(eta)
    algorithm: Algorithm = round_robin_easgd(inner, alpha=alpha) if steps > 1 else easgd(inner, alpha=alpha, period=1)
    rule = as_optax(algorithm, "worker")

    def worker(x: Any) -> tuple[Any, Any]:
      state: Any = rule.init(x)
      state = state._replace(algorithm=state.algorithm._replace(center=unit[workers]))
      for _ in range(steps):
        updates, state = rule.update(x, state, x)  # the gradient of x^2 / 2
        x = optax.apply_updates(x, updates)
      return x, state.algorithm.center

    x, center = jax.vmap(worker, axis_name="worker")(unit[:workers])
    return jnp.concatenate([x, center[:1]])

  return jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))


@cache
def _map(name: str, workers: int, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Return the stability map of an algorithm: (etas [points], alphas [points], spectral radii [etas, alphas])."""
  etas, alphas = np.linspace(0, 2.4, points), np.linspace(0, 1.0, points)
  return etas, alphas, radii(name, workers, etas, alphas)


def section(config: Config) -> Section:
  """Build the section: spectral radii below, on and above the boundary, and the stability maps."""
  one, several, p = "original_easgd", config.turns, config.workers
  rows = []
  for eta in config.etas:
    bound, derived = published(eta), synchronous(eta, p)
    cases = ((one, 1, bound), (one, several, bound), ("easgd", p, derived))
    columns = [
      radii(name, workers, np.array([eta]), most * np.array(config.around))[0] for name, workers, most in cases
    ]
    rows.append((eta, bound, derived, *columns))
  wrong = {}  # map -> numbers of points (allowed by the inequality but unstable, excluded but stable)
  for name, workers in config.maps:
    etas, alphas, computed = _map(name, workers, config.points)
    inside = (etas[:, None] <= 2) & (alphas <= (published(etas[:, None])))
    wrong[name] = ((inside & (computed > STABLE)).sum(), (~inside & (computed <= STABLE)).sum())
  return page.read("easgd", picture=lambda: draw(config), config=config, table=rows, wrong=wrong, tuple=tuple)


def draw(config: Config) -> bytes:
  """Draw the stability maps next to each other; return a PNG file."""
  import altair as alt
  import pandas as pd

  across, up = 1.05 * 2.4 / (config.points - 1), 1.05 / (config.points - 1)  # overlapping cells leave no gaps
  names = ["measured boundary", "published inequality", "derived here"]
  x = alt.X("eta:Q", title="eta h", scale=alt.Scale(domain=[0, 2.4], nice=False))
  y = alt.Y("alpha:Q", title="alpha", scale=alt.Scale(domain=[0, 1], nice=False))
  maps, lines, drawn = [], [], []
  for name, workers in config.maps:
    panel = TITLES[name].format(workers)
    etas, alphas, spectral_radii = _map(name, workers, config.points)
    stable = spectral_radii <= STABLE  # [etas, alphas]
    edge = np.zeros_like(stable)
    edge[1:] |= stable[1:] != stable[:-1]
    edge[:, 1:] |= stable[:, 1:] != stable[:, :-1]
    eta, alpha = (grid.ravel() for grid in np.meshgrid(etas - across / 2, alphas - up / 2, indexing="ij"))
    corners = {"eta": eta, "to": eta + across, "alpha": alpha, "top": alpha + up}
    maps.append(pd.DataFrame({"map": panel, **corners, "radius": spectral_radii.ravel(), "edge": edge.ravel()}))
    eta = np.linspace(0, 2, 200)
    lines.append(pd.DataFrame({"map": panel, "eta": eta, "alpha": published(eta), "line": "published inequality"}))
    if name == "easgd":
      derived = {"map": panel, "eta": eta, "alpha": synchronous(eta, workers), "line": "derived here"}
      lines.append(pd.DataFrame(derived))
    legend = alt.Legend(title="spectral radius of a round", orient="right") if name == "easgd" else None
    colours = alt.Scale(scheme="redblue", reverse=True, domain=[0.5, 1.5], clamp=True)
    radius = alt.Color("radius:Q", scale=colours, legend=legend)
    key = alt.Color("line:N", scale=alt.Scale(domain=names, range=[INK, COLOURS[4], COLOURS[2]]),
                    legend=None if drawn else alt.Legend(orient="bottom"))  # fmt: skip
    base = alt.Chart(alt.NamedData("cells")).transform_filter(alt.datum.map == panel)
    base = base.encode(x=x, x2="to:Q", y=y, y2="top:Q")
    curve = alt.Chart(alt.NamedData("curves")).transform_filter(alt.datum.map == panel)
    layers = [
      base.mark_rect(clip=True).encode(color=radius),
      base.transform_filter("datum.edge").mark_rect(clip=True, color=INK),
      curve.mark_line(strokeDash=[5, 3], strokeWidth=2, clip=True).encode(x=x, y=y, color=key),
    ]
    layered = alt.layer(*layers).resolve_scale(color="independent")
    drawn.append(layered.properties(width=250, height=250, title=panel))
  return png(alt.hconcat(*drawn), cells=pd.concat(maps), curves=pd.concat(lines))
