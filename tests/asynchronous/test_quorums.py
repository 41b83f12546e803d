"""Quorum barriers serve the mean of a round's messages: for which servers, and with which results in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.servers import build
from helpers.simulations import KEY, twin_model, twin_rows
from helpers.twins import INNER, close, flat_of, tree_of
from reference import collective

from ddl.algorithms import SERVER
from ddl.api import Visit
from ddl.asynchronous.simulator import Simulator
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.errors import OptionError
from ddl.events.barriers import backup, cutoff
from ddl.events.schedule import make_schedule
from ddl.events.times import lognormal

pytestmark = pytest.mark.usefixtures("x64")
WORKERS, STEPS = 4, 12
COUNTS = {"fedbuff": "buffer", "rennala_sgd": "gradients", "async_local_sgd": "every"}  # messages per update
NO_DELAY = {"decoupled_diloco": {"delay": 0}}  # a delay is refused for another reason


def make(name, **hyper):
  algorithm = build(name, "momentum", workers=WORKERS, **NO_DELAY.get(name, {}), **hyper)
  return algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=0))


def plan(algorithm, barrier):
  steps = STEPS * algorithm.period
  return make_schedule(
    algorithm, workers=WORKERS, steps=steps, times=lognormal(workers=WORKERS, seed=0), barrier=barrier
  )


SUITED = [name for name in SERVER if make(name).read and make(name).arrivals.peers == "none"]


def is_the_same_for_all_workers(algorithm):
  """Return whether messages contain only floating-point numbers, and the server does not depend on their worker."""
  params = tree_of(jnp.linspace(-1, 1, 7))
  state, server, reply = algorithm.init(params)
  message = algorithm.request(*reversed(algorithm.local(params, state, params)))
  if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(message)):
    return False

  def served(server, worker):
    server, _ = algorithm.serve(server, message, Visit(jnp.int32(worker), jnp.int32(-1)))
    for reader in range(WORKERS):
      server, _ = algorithm.read(server, reply, Visit(jnp.int32(reader), jnp.int32(-1)))
    return server

  results = [jax.tree.leaves(served(served(server, 0), worker)) for worker in range(WORKERS)]
  return all(np.array_equal(a, b) for other in results for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("name", SUITED)
def test_a_server_averages_if_it_neither_counts_messages_nor_depends_on_their_worker(name):
  suits = is_the_same_for_all_workers(make(name))
  for hyper in [{}, {COUNTS[name]: 1}] if name in COUNTS else [{}]:  # the default counts are p
    algorithm, expected = make(name, **hyper), suits and bool(hyper) == (name in COUNTS)
    assert algorithm.averages == expected
    for barrier in (backup(spare=1), cutoff(window=2)):
      if expected:
        plan(algorithm, barrier)
        continue
      with pytest.raises(OptionError) as error:
        plan(algorithm, barrier)
      assert error.value.option == "config.barrier.name" and "asp, bsp, ssp or psp" in error.value.condition
      assert "\n" not in str(error.value)


OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}


@pytest.mark.parametrize(
  "name, hyper, synchronous, same",
  [
    ("async_local_sgd", {"every": 1, "period": 3, **OUTER}, "diloco", {"period": 3, **OUTER}),
    ("fedbuff", {"buffer": 1, "period": 3, **OUTER}, "diloco", {"period": 3, **OUTER}),
    ("rennala_sgd", {"gradients": 1}, "sync_sgd", {}),
    ("ringmaster_asgd", {}, "sync_sgd", {}),
    ("dc_asgd", {}, "sync_sgd", {}),
  ],
)
@pytest.mark.sampled(5)
def test_a_quorum_of_all_workers_is_synchronous(name, hyper, synchronous, same):
  algorithm = make(name, **hyper)
  steps = STEPS * algorithm.period
  x0, grad = collective.problem(WORKERS, steps)
  expected = collective.TWINS[synchronous](x0, grad, workers=WORKERS, steps=steps, inner=INNER["momentum"][1], **same)
  layout, how = make_workers(WORKERS, 2), ExecutionConfig("vmap", "scan", 64)
  simulator = Simulator(algorithm, twin_model(WORKERS, steps), layout, how, *plan(algorithm, backup(spare=0)))
  for _, carry, _ in simulator.run(simulator.start(KEY), simulator.plan(0, steps, steps), twin_rows, KEY):
    close(flat_of(simulator.consensus(carry).params), expected.evaluate[-1])
