"""Plans, curves and predictions on clusters with extreme figures are finite and raise no NumPy warning."""

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.cluster_configs import NBYTES, config_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.comparison import predict
from ddl.costs import scale
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.perf import cluster_file, plan, plan_text, scaling
from ddl.perf.cluster import NCCL, Cluster, LinkModel, NetworkModel, Uplink
from ddl.perf.device import Device, Efficiency, LayerWork
from ddl.perf.patterns import ExchangePattern, Op, Pattern, Visits
from ddl.perf.placement import table_job
from ddl.perf.scaling import Transport, work_of
from experiments.commands.plan import record

DEVICE, NODES = cluster_file.TABLES["device"], cluster_file.TABLES["nodes"]
RANGES = {  # class -> field -> range
  Device: {key: DEVICE[key].valid for key in ("peak", "memory_bandwidth", "memory", "start")},
  Efficiency: {"best": DEVICE["efficiency"].valid, "half": DEVICE["half"].valid, "memory": DEVICE["efficiency"].valid},
  LinkModel: {key: entry.valid for key, entry in cluster_file.TABLES["link.node"].items()},
  NetworkModel: {"per_node": NODES["devices"].valid, "sites": NODES["sites"].valid, "card": NODES["card"].valid},
  Uplink: {key: entry.valid for key, entry in cluster_file.TABLES["uplink"].items()},
}
PARTS = (LayerWork(1e6, 1e3, 3e4), LayerWork(1e3, 1e6, 3e6), LayerWork(0.0, 0.0, 3e3))
PATTERNS = [
  Pattern(local=(Op("all_reduce", NBYTES),)),
  Pattern(exchanges=(ExchangePattern((Op("all_reduce", NBYTES),), 4, 2),)),
  Pattern(visits=Visits(NBYTES, NBYTES, 4, 2)),
  Pattern(visits=Visits(NBYTES, NBYTES, 1, 0, peers=True)),
]


@st.composite
def within(draw, kind):
  """Draw the fields of a class from their ranges, often at the ends."""
  values = {}
  for name, valid in RANGES[kind].items():
    least, most = valid.low, valid.high
    ends = [least, most, *([0.0] if valid.zero else [])]
    middle = st.floats(math.log(max(least, 1e-12)), math.log(most)).map(lambda x: math.exp(x))
    value = draw(st.sampled_from(ends) | middle.map(lambda x, least=least, most=most: min(max(x, least), most)))
    values[name] = int(value) if kind in (NetworkModel, Uplink) and name != "card" and name != "share" else float(value)
  return values


@st.composite
def clusters(draw) -> Cluster:
  device = Device(**draw(within(Device)) | {"width": draw(st.sampled_from([2, 4]))})
  efficiency = Efficiency(**draw(within(Efficiency)))
  network = draw(within(NetworkModel))
  per_node = min(network["per_node"], 64)
  workers = draw(st.sampled_from([None, 64, 2**20]))
  result = NetworkModel(
    LinkModel(**draw(within(LinkModel))),
    LinkModel(**draw(within(LinkModel))) if per_node > 1 else None,
    per_node,
    min(network["sites"], 64 // per_node) or 1,
    card=network["card"] or None,
    uplink=draw(st.none() | within(Uplink).map(lambda x: Uplink(**x))),
    reduces=draw(st.sampled_from([(), ("inside", "between")])),
    library=draw(st.sampled_from([None, NCCL])),
  )
  host = draw(st.none() | within(LinkModel).map(lambda x: LinkModel(**x)))
  return Cluster("title", device, efficiency, result, "source", host, workers, draw(st.booleans()))


def finite(value: Any) -> bool:
  """Return whether all numbers in nested containers are finite."""
  if isinstance(value, float | np.floating):
    return math.isfinite(value)
  return all(
    map(finite, value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ())
  )


@pytest.fixture(autouse=True)
def warnings_as_errors():
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    yield


@settings(max_examples=12)
@given(cluster=clusters(), workers=st.sampled_from([0, 1, 2, 48]), batch=st.sampled_from([0, 1, 2**20]))
def test_plans_are_finite(cluster, workers, batch):
  large = cluster._replace(device=cluster.device._replace(memory=max(cluster.device.memory, 1e13)))
  placed = table_job("alexnet", large, workers)
  result = plan.plan(placed.job, placed.cluster, plan.PlanRequest(batch, workers, efficiency=1e-3, exposed=1e-9))
  reported = plan_text.text(placed.job, "name", placed.cluster, result, explain=True)
  assert finite(record(placed.job, "name", result, {})) and not re.search(r"\b(inf|nan)\b", reported), reported


@settings(max_examples=12)
@given(
  cluster=clusters(), pattern=st.sampled_from(PATTERNS), jitter=st.sampled_from([0.0, 0.0, 1e-300, 10.0]),
  weak=st.booleans(), bucket=st.sampled_from([0.0, 1e-300, 1e300]),
)  # fmt: skip
def test_curves_are_finite(cluster, pattern, jitter, weak, bucket):
  points = scaling.curve(
    lambda _: pattern, work_of(PARTS, NBYTES), cluster, [1, 48], batch=48, weak=weak, jitter=jitter,
    transport=Transport(bucket=bucket),
  )  # fmt: skip
  assert finite([list(point) for point in points])
  assert all(point.limit in (*scaling.LOSSES, "nothing") for point in points) and scale.EFFICIENCY


@settings(max_examples=4)
@given(cluster=clusters(), seconds=st.sampled_from([1, 40]))
def test_predictions_are_finite(cluster, seconds):
  entrants = {}
  for name in ("sync_sgd", "local_sgd", "async_sgd", "gosgd"):
    config = config_of(name, period=4 if name == "local_sgd" else None)
    algorithm = config.make_algorithm()
    pattern = pattern_of(algorithm, vector(NBYTES), config.workers, (NBYTES, NBYTES))
    entrants[name] = predict.Entrant(config, algorithm, pattern, [0], [np.array([0, 20, 40])], [float(seconds)])
  result = predict.entry("name", cluster, entrants, work_of(PARTS, NBYTES), NBYTES)
  assert finite(result)
