"""The table of what each algorithm sends against the traffic of its traced program, for every algorithm."""

import functools
import math

import jax
import jax.numpy as jnp
import optax
import pytest

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.models import MODELS
from ddl.perf.comm import collectives, patterns, server
from ddl.perf.comm.patterns import PATTERNS
from ddl.perf.hardware.network import Link, Network
from ddl.runtime import traffic
from ddl.runtime.calls import plan
from ddl.runtime.server_traffic import exchange_nbytes
from ddl.runtime.traffic import Traffic
from ddl.runtime.workers import AXIS

INNER = optax.sgd(0.1, momentum=0.9)
LINK = Link(1e-5, 1e9, 0.5)
META = {"task": "classification", "shape": (28, 28, 1), "num_outputs": 10}
OWN_SETTINGS = {"post_local_sgd": {"start": 3}}


@functools.cache
def lenet():
  return MODELS["lenet"](META)


@functools.cache
def params_of(kind):
  if kind == "lenet":
    return jax.eval_shape(lenet().init, jax.random.key(0))[0]
  return {"w": jax.ShapeDtypeStruct((10, 3), jnp.float32), "b": jax.ShapeDtypeStruct((1,), jnp.float32)}


def nbytes_of(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def settings_of(spec, name, workers, **more):
  values = {key: h.default(workers) if callable(h.default) else h.default for key, h in spec.hyper.items()}
  return values | OWN_SETTINGS.get(name, {}) | {key: value for key, value in more.items() if key in values}


def traced(name, workers, params, **more):
  """The algorithm and its meter."""
  spec = COLLECTIVE[name]
  algorithm = spec.factory(INNER, axis_name=AXIS, **settings_of(spec, name, workers, **more))
  axes = [(AXIS[0], workers), (AXIS[1], 1)]
  state = jax.make_jaxpr(algorithm.init, axis_env=axes, return_shape=True)(params)[1]
  return algorithm, traffic.meter(algorithm, state, params, workers)


def server_algorithm(name, workers):
  spec = SERVER[name]
  return spec.factory(INNER, workers=workers, **settings_of(spec, name, workers))


def test_the_table_has_every_algorithm_and_no_other():
  assert set(PATTERNS) == {*COLLECTIVE, *SERVER}
  for name, spec in {**COLLECTIVE, **SERVER}.items():
    assert PATTERNS[name].periodic == ("period" in spec.hyper), name


@pytest.mark.parametrize("kind", ["lenet", "31 values"])
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("name", COLLECTIVE)
def test_collectives_send_what_is_traced(name, workers, kind):
  params = params_of(kind)
  nbytes = nbytes_of(params)
  algorithm, meter = traced(name, workers, params)
  step = patterns.bytes_sent(name, nbytes, workers) - patterns.exchange_bytes(name, nbytes, workers)
  assert step == pytest.approx(meter.local.nbytes, rel=1e-12)
  assert patterns.exchange_bytes(name, nbytes, workers) == pytest.approx(meter.launch.nbytes, rel=1e-12)
  assert bool(PATTERNS[name].launch) == (algorithm.launch is not None)


@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("name", COLLECTIVE)
def test_the_average_over_a_run_is_that_of_the_trace(name, period):
  """100 rounds, after those of the start: the first round may have nothing in flight."""
  workers, params = 4, params_of("31 values")
  period = period if PATTERNS[name].periodic else 1
  algorithm, meter = traced(name, workers, params, period=period, delay=1)
  total, first = Traffic(), algorithm.start + algorithm.period
  for call in plan(algorithm, first, first + 100 * algorithm.period, 10**6, 64):
    total += meter.of(call.unit).times(call.repeat)
  predicted = patterns.bytes_sent(name, nbytes_of(params), workers, period=period)
  assert predicted == pytest.approx(total.nbytes / (100 * algorithm.period), rel=1e-12)


def test_strips_are_padded_as_the_program_pads_them():
  odd = {"w": jax.ShapeDtypeStruct((61,), jnp.bfloat16)}
  for workers in (2, 4, 7, 61, 64):
    _, meter = traced("sharded_sync_sgd", workers, odd)
    assert patterns.bytes_sent("sharded_sync_sgd", 61 * 2, workers, itemsize=2) == pytest.approx(meter.local.nbytes)
  assert patterns.bytes_sent("sharded_sync_sgd", 61 * 2, 64, itemsize=2) == 2 * 63 * 2  # 61 values in 64 strips


@pytest.mark.parametrize("name", [name for name in SERVER if not PATTERNS[name].peers])
def test_servers_are_sent_and_send_the_leaves_of_their_messages(name):
  params = params_of("lenet")
  algorithm = server_algorithm(name, 4)
  state, _, reply = jax.eval_shape(algorithm.init, params)
  message = jax.eval_shape(algorithm.request, state, params)
  assert algorithm.arrivals.peers == "none"
  assert PATTERNS[name].up * nbytes_of(params) == nbytes_of(message)
  assert PATTERNS[name].down * nbytes_of(params) == nbytes_of(reply)


@pytest.mark.parametrize("name", SERVER)
def test_a_visit_moves_what_the_functions_move(name):
  """Peer to peer, the models that move are found by trying with and without a peer."""
  algorithm, nbytes = server_algorithm(name, 4), nbytes_of(params_of("lenet"))
  assert PATTERNS[name].peers == (algorithm.arrivals.peers != "none")
  counted, chance = exchange_nbytes(algorithm, lenet()), algorithm.arrivals.peer_probability
  assert patterns.exchange_bytes(name, nbytes, 4) == counted
  average = patterns.bytes_sent(name, nbytes, 4, period=algorithm.period, probability=chance)
  assert average == pytest.approx(counted * chance / algorithm.period, rel=1e-12)


def test_a_model_that_is_pushed_goes_up_and_one_that_is_pulled_comes_down():
  assert (PATTERNS["push_gossip"].up, PATTERNS["push_gossip"].down) == (1, 0)
  assert (PATTERNS["gosgd"].up, PATTERNS["gosgd"].down) == (1, 0)
  assert (PATTERNS["pull_gossip"].up, PATTERNS["pull_gossip"].down) == (0, 1)


# ---- seconds


@pytest.mark.parametrize("name", PATTERNS)
def test_seconds_are_those_of_the_collectives_and_of_the_server(name):
  n, p, network = 4096.0, 8, Network(LINK)
  reduce = collectives.all_reduce(n, p, network)
  strips = sum(collectives.one_way(kind, n, p, network) for kind in ("reduce_scatter", "all_gather"))
  one, two = LINK.seconds(n), 2 * LINK.seconds(n)
  expected = {
    "sync_sgd": (reduce, 0),
    "sharded_sync_sgd": (strips, 0),
    "independent": (0, 0),
    "push_gossip": (0, one),
    "gosgd": (0, one),
    "pull_gossip": (0, one + LINK.latency),  # an empty message asks for the model
  }
  default = (0, reduce) if name in COLLECTIVE else (0, two)
  assert patterns.seconds(name, n, p, network) == pytest.approx(expected.get(name, default), rel=1e-12)


def test_seconds_use_the_network_the_servers_and_the_algorithm():
  fast = Network(LINK, Link(1e-6, 1e12), 4)
  assert patterns.seconds("sync_sgd", 1e8, 8, fast).step < patterns.seconds("sync_sgd", 1e8, 8, Network(LINK)).step
  tree = patterns.seconds("local_sgd", 1e8, 8, Network(LINK), algorithm="tree").exchange
  assert tree == collectives.ALL_REDUCE["tree"](1e8, 8, LINK)
  sharded = patterns.seconds("async_sgd", 1e8, 8, Network(LINK), servers=4).exchange
  assert sharded == server.visit_seconds(1e8, 1e8, LINK, 4)
  assert patterns.seconds("ad_psgd", 1e8, 4, fast).exchange < patterns.seconds("ad_psgd", 1e8, 8, fast).exchange


@pytest.mark.parametrize("name", PATTERNS)
def test_one_worker_has_nobody_to_talk_to_but_a_server(name):
  alone = name in COLLECTIVE or PATTERNS[name].peers
  assert (sum(patterns.seconds(name, 1e6, 1, Network(LINK))) == 0) == alone
  assert (patterns.bytes_sent(name, 1e6, 1) == 0) == alone


@pytest.mark.parametrize(
  "call, says",
  [
    (lambda: patterns.bytes_sent("sgd", 1.0, 2), "no algorithm 'sgd'; there are sync_sgd"),
    (lambda: patterns.bytes_sent("sync_sgd", 1.0, 2, period=4), "sync_sgd has no period"),
    (lambda: patterns.bytes_sent("local_sgd", 1.0, 2, period=0), "period is 0"),
    (lambda: patterns.bytes_sent("local_sgd", 1.0, 0), "0 workers"),
    (lambda: patterns.bytes_sent("gosgd", 1.0, 2, probability=1.5), "probability is 1.5"),
    (lambda: patterns.exchange_bytes("local_sgd", math.nan, 2), "nan bytes"),
    (lambda: patterns.seconds("async_sgd", 400.0, 2, Network(LINK), servers=101), "101 servers .* 100 parameters"),
  ],
)
def test_what_can_t_be_gets_one_line(call, says):
  with pytest.raises(ValueError, match=says) as error:
    call()
  assert "\n" not in str(error.value)
