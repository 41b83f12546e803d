"""Small runs of the simulator, and of the same events one at a time, for tests of virtual time."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.twins import flat_of, tree_of
from reference import collective as reference
from reference.sequential import Sequential

from ddl.algorithms import SERVER
from ddl.api import Model
from ddl.asynchronous.simulator import Simulator
from ddl.config import default_experiment
from ddl.config.catalog import keywords
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.events.barriers import asp
from ddl.events.operations import stops
from ddl.events.schedule import make_schedule, visits_until
from ddl.events.times import lognormal
from ddl.run.build import build

WORKERS, STEPS = 4, 9
KEY = jax.random.key(1)
TROUBLE = {"slow": (1.0, 1.0, 2.5, 1.0), "straggler_rate": 0.1, "straggler_factor": 3.0, "straggler_steps": 2.0}


def experiment(name, **algorithm):
  if name in SERVER and "period" in keywords(SERVER[name].factory) and not algorithm:
    algorithm["period"] = 3
  settings = default_experiment(
    algorithm={"name": name, **algorithm}, model={"hidden": (8,)}, workers=WORKERS, batch=4, steps=STEPS,
    optimizer={"momentum": 0.9, "learning_rate": 0.05},
  )  # fmt: skip
  return build(settings)


def events_of(algorithm, barrier=None, seed=0, blocks=5, message=0.001, **trouble):
  if algorithm.lock_free:
    algorithm = algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=blocks))
  times = lognormal(workers=WORKERS, seed=seed, seconds=0.01, jitter=0.3, **trouble)
  return make_schedule(
    algorithm,
    workers=WORKERS,
    steps=STEPS,
    times=times,
    barrier=barrier or asp(),
    message_seconds=message,
    service_seconds=0.004,
    seed=seed,
  )


def simulate(components, schedule, devices=1, gradients="unroll", widest=None, every=4):
  layout = make_workers(WORKERS, devices)
  simulator = Simulator(
    components.algorithm, components.model, layout, ExecutionConfig(gradients, "scan", 3), *schedule, widest=widest
  )
  carry, losses = simulator.start(jax.random.key(0)), []
  for call, after, loss in simulator.run(carry, simulator.plan(0, STEPS, every), components.training_feed([]), KEY):
    carry = after
    losses.append(simulator.losses(call, loss))
  return simulator, carry, np.concatenate(losses)


def one_by_one(components, schedule):
  events, ops = schedule
  runner = Sequential(components.algorithm, components.model, events, ops, WORKERS)
  runner.start(*jax.jit(components.model.init)(jax.random.key(0)))

  def take(worker, step):
    batch = jax.tree.map(lambda x: x[0, 0], components.feed([worker])(step, 1))
    return batch, jax.random.fold_in(jax.random.fold_in(KEY, worker), step)

  runner.run(0, stops(ops, [visits_until(components.algorithm, events, WORKERS, STEPS)])[0], take)
  return runner


def leaves(tree):
  return [np.asarray(x) for x in jax.tree.leaves(tree)]


def of_workers(reference):
  return jax.tree.map(lambda *x: np.stack([np.asarray(v) for v in x]), *reference.params)


def twin_model(workers, steps):
  """Return the references' problem, with statistics e <- e / 2 + x as in batch norm, and a step counter."""
  x0, grad = reference.problem(workers, steps)

  def loss(params, extra, batch, key):
    flat = flat_of(params)
    slope = jax.lax.stop_gradient(grad(batch["worker"][0], batch["step"][0], flat))
    value = jax.lax.stop_gradient(flat)
    return jnp.sum(slope * flat), {"mean": 0.5 * extra["mean"] + value, "count": extra["count"] + 1}

  def init(key):
    return tree_of(jnp.asarray(x0)), {"mean": jnp.zeros(len(x0)), "count": jnp.int32(0)}

  return Model(init, loss)


def twin_rows(pairs, steps):
  """Return batches [worker rounds, steps, 1] that contain their worker and step."""
  worker = np.array([[w] * steps for w, _ in pairs], np.int32)
  step = np.array([range(first, first + steps) for _, first in pairs], np.int32)
  return {"worker": worker[..., None], "step": step[..., None]}
