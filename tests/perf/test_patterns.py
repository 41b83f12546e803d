"""Message patterns traced from algorithms: bytes, seconds and clocks against numbers by hand."""

import jax
import jax.numpy as jnp
import optax
import pytest

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Algorithm, Exchange, descend
from ddl.config import default_experiment
from ddl.config.catalog import keyword_arguments, keywords, make_algorithm
from ddl.costs import cluster_clock
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.costs.scale import WITH_MOMENTS, recorded
from ddl.engine import traffic
from ddl.models import MODELS
from ddl.perf import collectives, patterns, scaling
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.device import Device, Efficiency, LayerWork
from ddl.perf.layers import StepMemory
from ddl.perf.patterns import Op, Pattern, Visits
from ddl.perf.placement import Job
from ddl.perf.plan import PlanRequest, plan
from ddl.perf.scaling import StepWork, Transport, work_of
from ddl.run import virtual_time
from ddl.schedule import Schedule

LINK = LinkModel(1e-5, 1e9, 0.5)
N = 4e6  # bytes
P = 8
SGD = optax.sgd(0.1)


# ---- seconds of collectives


@pytest.mark.parametrize("name", sorted(COLLECTIVE))
def test_exchanges_are_launched_as_in_training(name):
  """Skip exchanges with a changing period, which `launched` replaces by a steady one."""
  required = {key: 2 for key, x in keywords(COLLECTIVE[name].factory).items() if x.default is x.empty}
  values = keyword_arguments("algorithm", {"name": name, **required}, P)
  algorithm = make_algorithm(name, WITH_MOMENTS, P, values)
  exchanges, clocks = pattern_of(algorithm, vector(N), P).exchanges, Schedule(algorithm.exchanges).clocks
  for exchange, clock in zip(exchanges, clocks, strict=True):
    if clock.steady:
      assert [exchange.launched(step) for step in range(600)] == [clock.launched(step) for step in range(600)]


def test_seconds_of_several_collectives_add_up():
  network = NetworkModel(LINK, LinkModel(1e-6, 1e12), 4)
  ops = [Op(kind, N) for kind in ("all_reduce", "all_gather", "reduce_scatter", "permute")]
  costs = [patterns.seconds([op], P, network) for op in ops]
  strip = collectives.one_way("reduce_scatter", N, P, network)
  assert costs == [collectives.all_reduce(N, P, network), strip, strip, collectives.permute(N, P, network)]
  assert patterns.seconds(ops, P, network) == pytest.approx(sum(costs), rel=1e-12)
  assert patterns.seconds((), P, network) == 0


@pytest.mark.parametrize("duplex", [0.0, 0.5, 1.0])
def test_a_permute_costs_one_message_per_worker(duplex):
  between, inside = LinkModel(1e-5, 1e9, duplex), LinkModel(1e-6, 1e11, duplex)
  both = N * (2 - duplex)  # out and in
  assert collectives.permute(N, P, NetworkModel(between)) == pytest.approx(1e-5 + both / 1e9, rel=1e-12)
  nodes = NetworkModel(between, inside, 4)
  assert collectives.permute(N, 4, nodes) == pytest.approx(1e-6 + both / 1e11, rel=1e-12)  # within a node
  assert collectives.permute(N, P, nodes) == pytest.approx(
    1e-5 + 4 * both / 1e9, rel=1e-12
  )  # four messages share the node's link
  assert collectives.permute(N, 1, nodes) == 0


@pytest.mark.parametrize("duplex", [0.0, 0.5])
def test_a_permutes_cost_depends_on_the_pairs(duplex):
  between, inside = LinkModel(1e-5, 1e9, duplex), LinkModel(1e-6, 1e11, duplex)
  nodes, both = NetworkModel(between, inside, 4), N * (2 - duplex)

  def price(sources):
    return collectives.permute(N, P, nodes, sources)

  within = 1e-6 + both / 1e11
  assert price([1, 2, 3, 0, 5, 6, 7, 4]) == pytest.approx(within, rel=1e-12)  # a ring in each node
  assert price([(i - 1) % P for i in range(P)]) == pytest.approx(
    1e-5 + both / 1e9, rel=1e-12
  )  # one message leaves each node
  far = price([(i + 4) % P for i in range(P)])
  assert far == collectives.permute(N, P, nodes) == pytest.approx(1e-5 + 4 * both / 1e9, rel=1e-12)
  one_way = price([4, 5, *[None] * 6])  # the second node sends two messages to the first one
  assert one_way == pytest.approx(1e-5 + 2 * N / 1e9, rel=1e-12)
  slow = NetworkModel(
    between, LinkModel(1.0, 1e3, duplex), 4
  )  # the ring's messages inside take longer than those between
  assert collectives.permute(N, P, slow, [(i - 1) % P for i in range(P)]) == pytest.approx(1.0 + both / 1e3, rel=1e-12)
  far = collectives.permute(N, P, slow, [(i + 4) % P for i in range(P)])  # no messages inside nodes
  assert far == pytest.approx(1e-5 + 4 * both / 1e9, rel=1e-12)
  assert price(range(P)) == 0


def test_a_mean_inside_nodes_does_not_use_the_link_between_nodes():
  """The groups of hierarchical SGD are nodes."""
  hierarchical = COLLECTIVE["hierarchical_sgd"].factory(SGD, group_size=4, period=1, outer_period=8, workers=P)
  within, everywhere = pattern_of(hierarchical, vector(N), P).exchanges
  network = NetworkModel(LINK, LinkModel(1e-6, 1e12), 4)
  rounds = 2 * 3 * (1e-6 + N / 4 / 1e12)  # a ring of four
  assert patterns.seconds(within.ops, P, network) == pytest.approx(rounds, rel=1e-9)
  assert patterns.seconds(everywhere.ops, P, network) == collectives.all_reduce(N, P, network)


def test_an_int8_mean_costs_its_permutes_and_its_all_gather():
  """Strips are sent to their workers in p - 1 messages, which share the nodes' links, before the all-gather."""
  block = int(N) // 4 // P  # a strip has one scale
  strip = block + 4
  compressed = WRAPPERS["int8"].factory(COLLECTIVE["sync_sgd"].factory(SGD), block=block)
  ops = pattern_of(compressed, vector(N), P).local
  assert [(op.kind, op.nbytes) for op in ops] == [("permute", strip)] * (P - 1) + [("all_gather", P * strip)]
  network = NetworkModel(LINK, LinkModel(1e-6, 1e12), 4)
  crossing = sum((1, 2, 3, 4, 3, 2, 1))  # messages from a node to the other one, for the distances 1 to 7
  scatter = (P - 1) * LINK.latency + crossing * strip * (2 - LINK.duplex) / LINK.bandwidth
  gather = collectives.one_way("all_gather", P * strip, P, network)
  assert patterns.seconds(ops, P, network) == pytest.approx(scatter + gather, rel=1e-12)


# ---- traced patterns


def lenet():
  return jax.eval_shape(
    MODELS["lenet"]({"task": "classification", "shape": (28, 28, 1), "num_outputs": 10}).init, jax.random.key(0)
  )[0]


def nbytes_of(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


BY_SHAPE = ["sparseloco"]  # algorithms whose messages depend on the shapes of matrices


def test_vectors_with_the_sizes_of_a_models_leaves_have_its_pattern():
  workers, shapes = 4, lenet()
  sizes = [nbytes_of(leaf) for leaf in jax.tree.leaves(shapes)]
  for name in set(COLLECTIVE | SERVER) - {*BY_SHAPE}:
    spec = (COLLECTIVE | SERVER)[name]
    unset = {key: 1 for key, keyword in keywords(spec.factory).items() if keyword.default is keyword.empty}
    algorithm = make_algorithm(
      name, WITH_MOMENTS, workers, keyword_arguments("algorithm", {"name": name, **unset}, workers)
    )
    model, vectors = pattern_of(algorithm, shapes, workers), recorded(name, *sizes)(workers)
    if name == "dion":  # sends low-rank factors of matrices, and vectors whole
      assert sum(op.nbytes for op in model.local) < sum(op.nbytes for op in vectors.local)
      continue
    assert model == vectors or callable(algorithm.exchanges[0].period), name  # functions are never equal
    assert [exchange.ops for exchange in model.exchanges] == [exchange.ops for exchange in vectors.exchanges], name
    assert (model.visits is None) == (name in COLLECTIVE), name


def test_patterns_by_hand():
  whole = (Op("all_reduce", N),)
  assert recorded("sync_sgd", N)(P) == Pattern(local=whole)
  assert recorded("independent", N)(P) == Pattern(evaluate=whole)
  assert recorded("local_sgd", N, period=6)(P) == Pattern((), (patterns.ExchangePattern(whole, 6),), evaluate=whole)
  assert recorded("dasgd", N, period=6, delay=8)(P).exchanges == (patterns.ExchangePattern(whole, 6, 8),)
  assert recorded("easgd", N, period=6)(P) == Pattern((), (patterns.ExchangePattern(whole, 6, 1, -6),))
  strips = Op("reduce_scatter", 64 * 4), Op("all_gather", 64 * 4)  # 61 values in strips of 64 workers
  assert recorded("sharded_sync_sgd", 61 * 4)(64).local == strips
  (exchange,) = recorded("post_local_sgd", N, period=6, start=3)(P).exchanges
  assert [exchange.period(k) for k in range(5)] == [1, 1, 1, 6, 6] and exchange.steady == 6
  assert recorded("async_easgd", N, period=6)(P).visits == Visits(N, N, 6, 1)
  assert recorded("original_easgd", N)(P).visits.round_robin
  moved = {"push_gossip": (N, 0), "gosgd": (N, 0), "pull_gossip": (0, N), "ad_psgd": (N, N)}
  for name, (up, down) in moved.items():
    visits = recorded(name, N)(P).visits
    assert (visits.up, visits.down, visits.peers) == (up, down, True)
  assert recorded("gosgd", N)(P).visits.probability < 1


def test_a_single_worker_sends_nothing():
  for name in (*COLLECTIVE, "gosgd", "ad_psgd"):
    result = recorded(name, N)(1)
    assert not result.local and not result.evaluate, name
    assert not any(exchange.ops for exchange in result.exchanges), name
    assert result.visits is None or result.visits.up == result.visits.down == 0, name


# ---- user-defined algorithms


def algorithm_of(*exchanges, evaluate=lambda group, state, params: group.mean(params)):
  """Return local steps with these exchanges."""
  local = lambda group, grads, state, params: descend(SGD, grads, state, params)  # noqa: E731
  return Algorithm(lambda group, params, key: SGD.init(params), local, exchanges, evaluate)


def sends(collective, **clock):
  """Return an exchange that runs a collective on the parameters and ignores its result."""
  launch = lambda group, state, params: (collective(group, params["w"]), state)  # noqa: E731
  return Exchange(launch, lambda group, message, state, params: (params, state), **clock)


def shifts(group, x):
  return group.shift(x, 1), group.shift(x, -1)


RING = algorithm_of(sends(shifts))
LATE = algorithm_of(sends(lambda group, x: group.mean(x), period=1, delay=3))
TWO = algorithm_of(
  sends(lambda group, x: group.mean(x[: x.size // 2]), period=3, delay=4, offset=-2),
  sends(lambda group, x: group.shift(x, 1), period=2, offset=1),
  evaluate=lambda group, state, params: params,
)
LONGER = algorithm_of(sends(lambda group, x: group.sum(x), period=lambda k: k + 1))

STEP, LATENCY, BANDWIDTH = 1.0, 0.5, 4e6
NETWORK = NetworkModel(LinkModel(LATENCY, BANDWIDTH))
CLUSTER = Cluster("a test", Device(1e9, 1e12, 1e12), Efficiency(1.0), NETWORK, "")
PERMUTE = LATENCY + 1  # seconds for N bytes
HALF, WHOLE = (collectives.all_reduce(n, P, NETWORK) for n in (N / 2, N))


def config_of(steps, **network):
  times = {"name": "constant", "seconds": STEP}
  return default_experiment(workers=P, steps=steps, batch=1, times=times, network={"message_seconds": 0.25} | network)


def test_bytes_of_user_defined_algorithms():
  def sent(algorithm, steps):
    result = traffic.of(algorithm, vector(N), P)
    return result.nbytes(map(Schedule(algorithm.exchanges).due, range(steps)))

  reduced = 2 * 7 / 8
  assert sent(RING, 10) == 10 * 2 * N
  assert sent(LATE, 10) == 9 * reduced * N
  assert sent(TWO, 10) == 3 * reduced * N / 2 + 4 * N  # after 1, 4 and 7 steps; after 3, 5, 7 and 9 steps
  assert sent(LONGER, 10) == 4 * reduced * N  # after 1, 3, 6, 10 steps


def test_patterns_of_user_defined_algorithms():
  ring, late, two, longer = (pattern_of(algorithm, vector(N), P) for algorithm in (RING, LATE, TWO, LONGER))
  sources = [tuple((i - shift) % P for i in range(P)) for shift in (1, -1)]
  assert ring.exchanges == (patterns.ExchangePattern(tuple(Op("permute", N, ranks) for ranks in sources)),)
  assert late.exchanges == (patterns.ExchangePattern((Op("all_reduce", N),), 1, 3),)
  half, shift = Op("all_reduce", N / 2), Op("permute", N, sources[0])
  assert two == Pattern((), (patterns.ExchangePattern((half,), 3, 4, -2), patterns.ExchangePattern((shift,), 2, 0, 1)))
  assert longer.exchanges[0].period(4) == 5


def test_virtual_clocks_of_user_defined_algorithms():
  """Steps of 1 s; a permute takes one message of 0.25 s, an all-reduce of eight workers six messages."""

  def virtual(algorithm, steps, **network):
    config = config_of(steps, **network)
    charged = virtual_time.charges(config, traffic.of(algorithm, vector(N), P))
    clock = virtual_time.lockstep_seconds(config, algorithm, charged)
    return [clock(step) for step in range(1, steps + 1)]

  assert virtual(RING, 3) == [1.5, 3, 4.5]
  assert virtual(RING, 3, exchange_seconds=5.0) == [6, 12, 18]
  # Messages are sent one after the other from 1 s on, arrive at 2.5, 4, 5.5, ... s, and are needed after steps 4, 5...
  assert virtual(LATE, 9) == [1, 2, 3, 4, 5, 6, 7, 8.5, 10]
  # The all-reduce is sent after 1, 4 and 7 steps and needed after 5 and 8; the permute follows steps 3, 5 and 7.
  # 1 to 2.5 s; 3 to 3.25; 4.25 to 5.75, so that step 5, which ends at 5.25, sends its permute from 5.75 to 6; 8 to 8.25
  assert virtual(TWO, 8) == [1, 2, 3.25, 4.25, 6, 7, 8.25, 9.25]
  assert virtual(LONGER, 6) == [2.5, 3.5, 6, 7, 8, 10.5]


def test_clocks_of_user_defined_algorithms_on_a_cluster():
  def target(algorithm, steps):
    config, pattern = config_of(steps), pattern_of(algorithm, vector(N), P)
    charged = cluster_clock.on(config, pattern, CLUSTER, work_of(1e9, N))
    assert charged.config.times.seconds == STEP
    clock = cluster_clock.clock(charged, algorithm)
    return [clock(step) for step in range(steps + 1)], charged

  result, charged = target(RING, 3)
  assert charged.charged[:2] == (None, (2 * PERMUTE,)) and charged.mean == WHOLE
  assert result == pytest.approx(
    [0, *(step * 4 + WHOLE for step in (1, 2, 3))]
  )  # no worker has the mean without another all-reduce
  result, _ = target(LONGER, 4)  # its exchange is a sum, which an evaluation cannot use
  assert result == pytest.approx([0, 1 + WHOLE, 2 + 2 * WHOLE, 3 + 2 * WHOLE, 4 + 3 * WHOLE])
  result, charged = target(TWO, 5)
  assert charged.charged[:2] == (None, (HALF, PERMUTE)) and charged.mean == 0
  assert HALF > 2  # still on the link when the permutes after steps 3 and 5 are due
  third = 1 + HALF + PERMUTE  # seconds when the permute after step 3 arrives
  fifth = max(third + 2, third + 1 + HALF) + PERMUTE
  assert result == pytest.approx([0, 1, 2, third, third + 1, fifth])
  result, _ = target(LATE, 8)
  assert result == pytest.approx(
    [0, *(step + WHOLE for step in (1, 2, 3)), *(1 + k * WHOLE + WHOLE for k in range(1, 6))]
  )


def test_scale_and_plan_of_user_defined_algorithms():
  """With steps of 1 s, a step waits for the part of its messages that is not hidden."""
  job = StepWork((LayerWork(1e9),), (N,))

  def pattern(algorithm):
    return lambda workers: pattern_of(algorithm, vector(N), workers)

  def seconds(algorithm, network=NETWORK, **options):
    target, transport = CLUSTER._replace(network=network), Transport(**options)
    (point,) = scaling.curve(pattern(algorithm), job, target, [P], batch=1, weak=True, transport=transport)
    return point.seconds

  assert seconds(RING) == pytest.approx(STEP + 2 * PERMUTE)
  assert seconds(LATE) == pytest.approx(WHOLE)  # more than a step: the link is never idle
  assert seconds(LATE, NetworkModel(LinkModel(0.0, 1e8))) == pytest.approx(STEP)
  assert seconds(LATE, overlap=False) == pytest.approx(STEP + WHOLE)
  assert seconds(TWO, overlap=False) == pytest.approx(STEP + HALF / 3 + PERMUTE / 2)
  result = plan(
    Job("a job", N, 1e9, StepMemory(1.0, 1.0)), CLUSTER, PlanRequest(1, P), configured=("ring", pattern(RING))
  )
  assert result.speeds[-1].algorithm == "ring" and result.speeds[-1].seconds == pytest.approx(STEP + 2 * PERMUTE)


def test_an_invalid_offset_is_rejected_in_one_line():
  with pytest.raises(ValueError, match=r"offset of an exchange must be .*got -1") as error:
    pattern_of(algorithm_of(sends(lambda group, x: group.mean(x), offset=-1)), vector(N), P)
  assert "\n" not in str(error.value)


def test_tracing_allocates_no_arrays():
  assert pattern_of(RING, vector(4e15), P).exchanges[0].ops[0].nbytes == 4e15
  assert vector(N)["w"].strides == (0,) and vector(N)["w"].dtype == jnp.float32  # all elements share memory
