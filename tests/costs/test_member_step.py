"""The costs of a step over the devices (members) of a worker, against formulas for split layers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.cluster_configs import NBYTES, WORK, config_of

from ddl.config import default_experiment
from ddl.costs import cluster_clock
from ddl.costs.cluster_clock import Members, pattern_of, vector
from ddl.costs.step_cost import compiled_step, worker_members
from ddl.engine.compiled_program import Collective
from ddl.perf import collectives
from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.cluster_file import named
from ddl.run.build import build

ROOT = Path(__file__).parents[2]
FLOAT, BATCH, WIDTH = 4, 16, 64
VALUES = 3 * (WIDTH + 1) * WIDTH + (WIDTH + 1) * 10  # of the digits' perceptron
BETWEEN, INSIDE = LinkModel(1e-5, 1e9), LinkModel(1e-6, 1e11)


@pytest.fixture(scope="module")
def components():
  return build(default_experiment(model={"name": "mlp", "hidden": (WIDTH, WIDTH, WIDTH)}, workers=2, batch=BATCH))


def test_a_pair_of_layers_costs_one_sum_each_way(components):
  """Two pairs forward; only the second backward, as the inputs of the first have no gradient."""
  result, cluster = worker_members(components, 2, "tensor"), named("h100_ib400")
  assert {(op.kind, op.size) for op in result.collectives} == {("all-reduce", 2)}
  sizes = [FLOAT * BATCH * width for width in (WIDTH, 10, WIDTH)]
  expected = sum(collectives.all_reduce(size, 2, cluster.network) for size in sizes)
  assert result.seconds(cluster) == pytest.approx(expected, rel=1e-12)
  whole = WIDTH + 10  # biases of the second layers
  assert result.share == pytest.approx((VALUES + whole) / VALUES, rel=1e-12)


def test_each_microbatch_runs_the_collectives(components):
  several = build(replace(components.experiment, microbatches=2), components.data)
  assert several.model.microbatches == 2
  half = build(replace(components.experiment, batch=BATCH // 2), components.data)
  one, two = (worker_members(job, 2, "tensor") for job in (half, several))
  assert two.collectives == 2 * one.collectives and two.share == one.share


def test_each_device_computes_its_part_and_gathers_parameters(components):
  one, two = (compiled_step(components, BATCH, members, "fsdp") for members in (1, 2))
  assert 0.45 < two.flop / one.flop < 0.6
  result = worker_members(components, 2, "fsdp")
  assert sorted(op.nbytes for op in result.collectives if op.kind == "all-gather")[-3:] == [FLOAT * WIDTH**2] * 3
  whole = 3 * WIDTH + (WIDTH + 1) * 10  # the biases and the last layer are small
  assert result.share == pytest.approx((VALUES + whole) / VALUES, rel=1e-12)
  assert worker_members(components, 1, "fsdp") == cluster_clock.ALONE


@pytest.mark.parametrize(
  "members, expected",
  [
    (2, NetworkModel(BETWEEN, INSIDE._replace(bandwidth=2e11), 2)),
    (4, NetworkModel(BETWEEN, None, 1)),
    (8, NetworkModel(BETWEEN._replace(bandwidth=2e9), None, 1)),
  ],
)
def test_a_worker_has_the_links_of_all_its_devices(members, expected):
  assert NetworkModel(BETWEEN, INSIDE, 4).grouped(members) == expected


@pytest.mark.parametrize("share", [1.0, 2.0])
def test_a_step_includes_the_collectives_of_members_and_an_exchange_uses_their_links(share):
  cluster = named("ethernet_10g")
  config = config_of("sync_sgd")
  pattern = pattern_of(config.make_algorithm(), vector(NBYTES), config.workers)
  inside = Collective("all-reduce", 4096, 2, "member", False)
  plain = cluster_clock.on(config, pattern, cluster, WORK)
  result = cluster_clock.on(config, pattern, cluster, WORK, Members(2, (inside, inside), share))
  more = 2 * collectives.all_reduce(4096, 2, cluster.network)
  assert result.config.times.seconds == pytest.approx(plain.config.times.seconds + more, rel=1e-12)
  wide = cluster.network.between._replace(bandwidth=2 * cluster.network.between.bandwidth)
  assert result.charged.local == pytest.approx(
    collectives.all_reduce(share * NBYTES, config.workers, NetworkModel(wide)), rel=1e-12
  )


def test_a_cluster_needs_a_worker_for_each_device():
  config = config_of("sync_sgd", workers=8)
  assert cluster_clock.clusters_by_name(["pcie_8gpu"], config)
  with pytest.raises(ValueError, match=r"config.workers must be at most 4 on pcie_8gpu \(.* 2 per worker\), got 8"):
    cluster_clock.clusters_by_name(["pcie_8gpu"], config, 2)


@pytest.mark.slow
def test_members_are_checked_before_jax_creates_the_devices():
  code = (
    "import jax; from ddl.config import default_experiment; from ddl.run import build; "
    "from ddl.config.options import RunOptions; "
    "build.check_options(build.build(default_experiment()), RunOptions(members=2)); "
    "jax.config.update('jax_num_cpu_devices', 3); assert jax.device_count() == 3"
  )
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
