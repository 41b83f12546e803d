"""On quadratics the iterates of each linear algorithm are a matrix power, in float64 at rtol 1e-12.

The matrices follow only from the papers' formulas (`reference.linear*`). With additive gradient noise of mean zero the
expected iterates are the same, because the maps are affine.
"""

import inspect

import numpy as np
import optax
import pytest
from helpers import servers, twins
from helpers.quadratics import X0, N, P, gradient, problem
from reference import linear_collective, linear_outer, linear_server

pytestmark = pytest.mark.usefixtures("x64")
OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.6}
COLLECTIVE_CASES = {  # hyperparameters; the inner optimizer has momentum except for PLAIN
  "sync_sgd": {},
  "sharded_sync_sgd": {},
  "independent": {},
  "pipe_sgd": {"width": 3},
  "local_sgd": {"period": 3},
  "post_local_sgd": {"period": 3, "start": 2},
  "adaptive_local_sgd": {"periods": ((0, 3), (4, 2))},
  "hierarchical_sgd": {"group_size": 2, "period": 2, "outer_period": 4},
  "fedavg": {"period": 3, "share": 1.0},
  "scaffold": {"period": 3, "share": 1.0, "server_rate": 0.8},
  "dasgd": {"period": 3, "delay": 2, "keep": 0.25},
  "cocod": {"period": 2},
  "overlap_local_sgd": {"period": 2, "pull": 0.6, "momentum": 0.4},
  "slowmo": {"period": 2, "slow_rate": 0.9, "slow_momentum": 0.5},
  "bmuf": {"period": 2, "block_learning_rate": 0.9, "block_momentum": 0.5, "nesterov": True},
  "diloco": {"period": 2, **OUTER},
  "eager_diloco": {"period": 2, **OUTER},
  "streaming_diloco": {"period": 4, **OUTER, "fragments": 2, "delay": 1, "keep": 0.25},
  "easgd": {"alpha": 0.1, "period": 2},
  "eamsgd": {"alpha": 0.1, "momentum": 0.5, "period": 2},
  "sma": {"alpha": 0.1, "momentum": 0.5, "period": 2},
  "round_robin_easgd": {"alpha": 0.3},
  "d_psgd": {"graph": "one_peer_exponential"},
  "sgp": {},
  "overlap_sgp": {"overlap": 2},
  "gradient_tracking": {"graph": "one_peer_exponential"},
  "exact_diffusion": {"graph": "one_peer_exponential", "consensus_rate": 0.6},
  "quasi_global_momentum": {"graph": "one_peer_exponential", "momentum": 0.5, "buffer_decay": 0.7},
  "gossip_pga": {"graph": "one_peer_exponential", "period": 3},
}
PLAIN = ("scaffold", "eamsgd", "hogwild_sgd")
SAME = {  # algorithms with the same matrices
  "sharded_sync_sgd": "sync_sgd",
  "async_msgd": "async_sgd",
  "hogwild_sgd": "async_sgd",
  "original_easgd": "async_easgd",
  "hogwild_easgd": "async_easgd",
  "async_measgd": "async_easgd",
}
MOMENTUM = 0.6
SERVER_CASES = {
  "async_sgd": {},
  "async_msgd": {"momentum": 0.6},
  "hogwild_sgd": {},
  "staleness_aware_sgd": {},
  "async_easgd": {"alpha": 0.3, "period": 1},
  "original_easgd": {"alpha": 0.3},
  "hogwild_easgd": {"alpha": 0.3, "period": 1},
  "async_measgd": {"alpha": 0.3, "momentum": 0.6, "period": 1},
  "downpour": {"period": 2},
  "dynsgd": {"period": 2},
  "pull_gossip": {},
  "push_gossip": {},
  "ad_psgd": {},
}
# Not included: noloco and gosgd (random partners), dc_asgd (squares gradients), async_local_sgd (counts arrivals),
# choco_sgd (compresses), relay_sgd (counts models).


@pytest.mark.parametrize("name", COLLECTIVE_CASES)
@pytest.mark.sampled(4)
def test_collective_iterates_are_a_matrix_power(name):
  quadratic = problem(0.0 if name in PLAIN else MOMENTUM)
  hyper, matrix = COLLECTIVE_CASES[name], SAME.get(name, name)
  module = linear_outer if hasattr(linear_outer, matrix) else linear_collective
  linear = getattr(module, matrix)(quadratic, X0, **hyper)
  algorithm = twins.build(name, optax.sgd(quadratic.rate, quadratic.momentum or None), P, **hyper)
  steps = len(linear.first) + max(2 * len(linear.cycle), 6)
  params, evaluated, _ = twins.drive(algorithm, X0, gradient, workers=P, steps=steps)
  for t in range(len(linear.first) + 1, steps + 1):
    state = linear.after(*divmod(t - len(linear.first), len(linear.cycle)))
    twins.close(params[t - 1].ravel(), linear.params @ state)
    twins.close(evaluated[t - 1], np.broadcast_to(linear.evaluate @ state, (P, N)))


@pytest.mark.parametrize("name", SERVER_CASES)
@pytest.mark.sampled(2)
def test_server_iterates_are_a_matrix_power(name):
  """Workers visit in rank order, three times each; the peer of worker i is i + 2."""
  hyper, peers = SERVER_CASES[name], [(i + 2) % P for i in range(P)]
  momentum = hyper.get("momentum")  # of the algorithm, instead of the inner optimizer's
  quadratic = problem(0.0 if name in PLAIN else momentum or MOMENTUM)
  matrices = getattr(linear_server, SAME.get(name, name))
  parameters = inspect.signature(matrices).parameters
  linear = matrices(
    quadratic, X0, **{key: value for key, value in {**hyper, "peers": peers}.items() if key in parameters}
  )
  inner = optax.sgd(quadratic.rate, None if momentum else quadratic.momentum or None)
  algorithm = servers.build(name, inner, workers=P, **hyper)
  _, evaluated, *_ = servers.drive(algorithm, X0, gradient, [*range(P)] * 3, peers * 3, workers=P)
  for t in range(len(linear.first) + 1, 3 * P + 1):
    state = linear.after(*divmod(t - len(linear.first), P))
    twins.close(evaluated[t - 1], linear.evaluate @ state)
