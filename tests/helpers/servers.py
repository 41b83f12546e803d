"""Server algorithms one event at a time, in a fixed order, for tests of their mathematics."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from helpers.twins import INNER, flat_of, tree_of

from ddl.algorithms import SERVER
from ddl.api import Visit
from ddl.config.catalog import for_workers

EVENTS = 16
ELASTIC = ("async_easgd", "async_measgd", "hogwild_easgd", "original_easgd")
PEERS = [name for name, spec in SERVER.items() if spec.taxonomy.pattern == "peer to peer"]


def build(name, inner="sgd", *, workers, **hyper):
  inner = INNER[inner][0] if isinstance(inner, str) else inner
  return SERVER[name].factory(inner, **for_workers("algorithm", name, workers), **hyper)


def visits(workers, *, events=EVENTS, seed=0):
  """Return a random order of workers and random peers, some of them -1."""
  rng = np.random.default_rng(seed)
  order = rng.integers(workers, size=events)
  others = (order + rng.integers(1, max(workers, 2), size=events)) % workers
  return order, np.where((rng.random(events) < 0.3) | (workers == 1), -1, others)


@cache
def gradient(grad):
  return jax.jit(lambda worker, step, params: tree_of(grad(worker, step, flat_of(params))))


def drive(algorithm, x0, grad, order, peers=None, *, workers, reads=(), compiled=False):
  """Run the contract of `ServerAlgorithm` one event at a time.

  x0: [n], or [workers, n] for different initial models. reads: the worker that reads after each event, or empty.
  compiled: compile functions as a whole, which is faster if they have branches, since most single operations are
  compiled already.
  Returns (params of the served worker at its request [E, n], evaluate [E, n], server, (params, state, last reply) per
  worker).
  """
  if compiled:
    functions = ("request", "local", "merge", "serve", "read", "evaluate")
    algorithm = algorithm._replace(**{name: jax.jit(f) for name in functions if (f := getattr(algorithm, name))})
  starts = [tree_of(jnp.asarray(x)) for x in np.broadcast_to(x0, (workers, np.shape(x0)[-1]))]
  _, server, first = algorithm.init(starts[0])
  all_ = [(x, algorithm.init(x)[0], first) for x in starts]
  rounds, history, evaluated = [0] * workers, [], []
  for e, i in enumerate(order):
    params, state, reply = all_[i]
    before = rounds[i] - (1 if algorithm.delay else 0)  # worker rounds with steps before this event
    for s in range(algorithm.period if before >= 0 else 0):
      if s == 0 and algorithm.delay == 0:
        params, state = algorithm.merge(reply, state, params)
      grads = gradient(grad)(i, before * algorithm.period + s, params)
      params, state = algorithm.local(grads, state, params)
      if s + 1 == algorithm.delay:
        params, state = algorithm.merge(reply, state, params)
    step = max(before * algorithm.period + (algorithm.period - 1) // 2, 0)  # the middle one
    visit = Visit(np.int32(i), np.int32(-1 if peers is None else peers[e]), np.int32(step))
    server, reply = algorithm.serve(server, algorithm.request(state, params), visit)
    all_[i], rounds[i] = (params, state, reply), rounds[i] + 1
    history.append(flat_of(params))
    if len(reads):
      params, state, reply = all_[reads[e]]
      server, reply = algorithm.read(server, reply, Visit(np.int32(reads[e]), np.int32(-1)))
      all_[reads[e]] = params, state, reply
    evaluated.append(flat_of(algorithm.evaluate(server)))
  return jnp.stack(history), jnp.stack(evaluated), server, all_
