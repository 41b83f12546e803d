"""Algorithm families: bytes against the traced algorithms, and seconds by hand."""

import math

import jax
import jax.numpy as jnp
import optax
import pytest

from ddl.algorithms.collective.streaming_diloco import streaming_diloco
from ddl.algorithms.collective.sync_sgd import sync_sgd
from ddl.algorithms.wrappers import int8, powersgd
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.perf import collectives, families, neural_networks, scaling
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.cluster_file import named
from ddl.perf.device import Device, Efficiency, LayerWork, step_seconds
from ddl.perf.layers import Layer, StepMemory, params_bytes
from ddl.perf.patterns import Op
from ddl.perf.placement import Job

SLOW, FAST = LinkModel(0.0, 1e9), LinkModel(0.0, 1e11)
SGD = optax.sgd(0.1)
N = 4e8  # bytes of parameters
JOB = Job("halves", N, [LayerWork(1e9, held=3e7), LayerWork(1e9, held=3e7)], StepMemory(1e6, 1.6e9))


def cluster(network, width=4, overlap=True):
  return Cluster("a test", Device(1e13, 1e15, 16e9, width=width), Efficiency(0.5), network, "none", overlap=overlap)


FLAT = cluster(NetworkModel(SLOW))
NODES = cluster(NetworkModel(SLOW, FAST, 4))


# ---- number formats


def test_message_bytes_include_the_scales():
  assert [families.message_bytes(4e6, name) for name in ("float32", "bfloat16")] == [4e6, 2e6]
  sent = pattern_of(int8.int8(sync_sgd(SGD), block=families.BLOCK), vector(4e6), 8).local
  gathered = next(op.nbytes for op in sent if op.kind == "all_gather")
  assert families.message_bytes(4e6, "int8") == pytest.approx(gathered, rel=2e-3)  # the last block is padded
  assert families.message_bytes(4e6, "int4") == pytest.approx(5e5 + 4e6 / 512)


def test_powersgd_pattern_equals_that_of_the_algorithm():
  shapes = {"kernel": (3, 3, 16, 32), "bias": (32,), "dense": (100, 30), "small": (100, 3)}
  params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
  table = (Layer("kernel", 16, 32, (3, 3)), Layer("dense", 100, 30, bias=False), Layer("small", 100, 3, bias=False))
  assert families.powersgd(table, 4) == pattern_of(powersgd.powersgd(sync_sgd(SGD), rank=4), params, 8).local


def test_powersgd_omits_layers_without_parameters():
  """A tied output layer has no parameters."""
  table = neural_networks.table("gpt2_124m")
  first, second = families.powersgd(table, 4)
  assert 0 < first.nbytes + second.nbytes < params_bytes(table) / 50


def test_seconds_of_compressed_gradients():
  seconds = {name: families.synchronous_seconds(JOB, FLAT, 8, 1, name) for name in families.FORMATS}
  assert seconds["float32"] > seconds["bfloat16"] == seconds["float16"] > seconds["int8"] > seconds["int4"]
  step = step_seconds(JOB.step, 1, FLAT.device, FLAT.efficiency)
  quarter = collectives.all_reduce(families.message_bytes(N, "int8"), 8, FLAT.network)
  hidden = step / 3  # the last layer's gradient is sent while the first layer computes
  assert seconds["int8"] == pytest.approx(step + quarter - hidden + 4 * N / 1e15, rel=0.01)


def test_powersgd_by_hand():
  """Two all-reduces after the backward pass, four passes over the gradients, and 0.2 ms per matrix."""
  job = JOB._replace(table=(Layer("one", 1000, 2000, bias=False), Layer("two", 2000, 500, bias=False)))
  step = step_seconds(JOB.step, 1, FLAT.device, FLAT.efficiency)
  sent = 4 * 4 * (1000 + 2000 + 2000 + 500)
  expected = step + 2 * sent / 1e9 * 7 / 8 + 4 * N / 1e15 + 2 * 200e-6
  assert families.powersgd_seconds(job, FLAT, 8, 1) == pytest.approx(expected)


def test_only_the_last_microbatch_exchanges():
  one = families.synchronous_seconds(JOB, FLAT, 8, 16)
  step = step_seconds(JOB.step, 16, FLAT.device, FLAT.efficiency)
  assert families.synchronous_seconds(JOB, FLAT, 8, 160, micro=10) == pytest.approx(9 * step + one)
  assert families.synchronous_seconds(JOB, FLAT, 1, 160, micro=10) == pytest.approx(10 * step)


# ---- sharded parameters


@pytest.mark.parametrize("width", [4, 2])
def test_full_sharding_by_hand(width):
  """Two units of 200 MB; parameters are gathered in the device's format, gradients are sent in float32."""
  slow_cluster = cluster(NetworkModel(SLOW), width=width)
  gather, scatter = (width / 4 * 0.2 * 7 / 8, 0.2 * 7 / 8)  # seconds per unit
  for step in (1e-3, 10.0):
    result = families.sharded_seconds(JOB, slow_cluster, 8, step, 8)
    hidden = max(step / 3, 2 * gather) + max(2 * step / 3, 2 * gather + 2 * scatter)
    assert result == pytest.approx(gather + hidden + scatter)
  sequential = families.sharded_seconds(JOB, slow_cluster._replace(overlap=False), 8, 1.0, 8)
  assert sequential == pytest.approx(1 + 4 * gather + 2 * scatter)
  assert families.sharded_seconds(JOB, slow_cluster, 1, 1.0, 1) == 1.0


def test_hybrid_sharding_reduces_traffic_between_nodes():
  step = 1e-3
  whole, hybrid = (families.sharded_seconds(JOB, NODES, 8, step, shards) for shards in (8, 4))
  between = collectives.all_reduce(N, 2, FLAT.network)  # each of the four workers sends a quarter over the same link
  assert between < hybrid < 1.6 * between and hybrid < whole
  assert families.shardings(NODES.network, 8) == [("fsdp", 8), ("hybrid_fsdp", 4)]
  assert families.shardings(NODES.network, 8, shards=8) == [("fsdp", 8)]
  assert families.shardings(NODES.network, 4) == [("fsdp", 4)] and families.shardings(NODES.network, 1) == []
  assert [n for _, n in families.shardings(NODES.network, 64, shards=8)] == [64, 8, 16, 32]
  assert families.exact_seconds(JOB, NODES, 4, 1, shards=8) == math.inf


def test_memory_and_units_of_sharded_parameters():
  assert families.sharded_memory(JOB, 1) == JOB.memory
  assert families.sharded_memory(JOB, 8) == StepMemory(1e6, 1.6e9 / 8 + 2 * N / 2)
  small = Job("small", 6e7, [LayerWork(1e6, held=1.0) for _ in range(6)], JOB.memory)  # layers of 10 MB
  assert families.shard_units(small) == pytest.approx([3e7, 3e7])


# ---- islands


@pytest.mark.parametrize(
  ("cluster", "workers", "expected"),
  [(FLAT, 8, ("workers", 8, 1)), (NODES, 8, ("nodes", 2, 4)), (NODES, 4, ("workers", 4, 1)),
   (named("two_sites_1g"), 16, ("sites", 2, 8)), (named("two_sites_1g"), 2, ("workers", 2, 1))],
)  # fmt: skip
def test_islands_are_sites_nodes_or_workers(cluster, workers, expected):
  assert families.islands(cluster, workers)[:3] == expected


def test_averages_between_islands_by_hand():
  partition = families.islands(NODES, 8)
  assert partition.message_seconds(N) == pytest.approx(0.4)  # 2 nodes: half of the bytes, twice
  assert families.averaged(0.1, 0.4, 10) == pytest.approx(0.14)
  settings = families.FamilySettings(N, 1000, 0.2, 8, 1, 1, 1)
  inside = families.inside_seconds(JOB, partition, settings)
  assert (
    inside
    == families.synchronous_seconds(JOB, partition.inside, 4, 1000)
    < families.synchronous_seconds(JOB, NODES, 8, 1000)
  )
  result = {speed.algorithm: speed for speed in families.between_islands(JOB, NODES, settings, 0.05)}
  assert result["diloco"].seconds == pytest.approx(inside + 0.4 / 500)
  period = result["hierarchical_sgd"].steps
  assert result["hierarchical_sgd"].seconds == pytest.approx(inside + 0.4 / period)
  assert 0.4 / period <= 0.05 * result["hierarchical_sgd"].seconds * (1 + 1e-12)
  assert inside + 0.4 / (period - 1) > inside / 0.95
  assert [speed.algorithm for speed in families.between_islands(JOB, FLAT, settings, 0.05)] == [
    "diloco",
    "streaming_diloco",
  ]


@pytest.mark.parametrize("step", [1.0, 0.02, 0.0005])
def test_streaming_diloco_equals_the_event_model(step):
  """Messages hidden by one step, by several steps, and not hidden."""
  fragments, period = families.FRAGMENTS, families.STREAMING
  nbytes = families.message_bytes(N, "int8")  # the algorithm sends the same number of bytes in float32
  workers, message = 8, lambda nbytes: collectives.all_reduce(nbytes, 8, FLAT.network)
  seconds, hidden = families.streaming(step, message, N, overlap=True)
  algorithm = streaming_diloco(
    SGD, period=period, outer_learning_rate=0.7, outer_momentum=0.9, fragments=fragments, delay=hidden, keep=0.5
  )
  work = scaling.StepWork((LayerWork(step * 5e12),), (nbytes,))
  pattern = pattern_of(algorithm, vector(*[nbytes / fragments] * fragments), workers)
  run = scaling.Scenario(pattern, work, FLAT, workers, 1, scaling.Transport())
  assert seconds == pytest.approx(scaling.seconds_and_waiting(run)[0], rel=1e-6)
  assert families.streaming(step, message, N, overlap=False)[1] == 0


def test_every_family_is_predicted_once():
  settings = families.FamilySettings(N, 64, 1.0, 8, 1, 1, 9)
  result = families.families(JOB, NODES, settings, 0.05)
  names = [(speed.algorithm, speed.setting) for speed in result]
  assert len(set(names)) == len(names)
  assert {name for name, _ in names} == {
    "sync_sgd", "fsdp", "hybrid_fsdp", "local_sgd", "dasgd", "hierarchical_sgd",
    "diloco", "streaming_diloco",
  }  # fmt: skip
  sharded = families.families(JOB, NODES, settings._replace(shards=4), 0.05)  # too large for one worker
  assert {speed.algorithm for speed in sharded} == {
    "fsdp", "hybrid_fsdp", "hierarchical_sgd", "diloco", "streaming_diloco"
  }  # fmt: skip
  assert {speed.algorithm for speed in families.families(JOB, NODES, settings._replace(shards=8), 0.05)} == {"fsdp"}
  assert Op("all_reduce", N).nbytes == sum(scaling.work_of(JOB.step, N).nbytes)
