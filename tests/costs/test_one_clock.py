"""An algorithm takes the same seconds in virtual time, `compare --cluster`, `scale`, `plan` and netbench."""

from dataclasses import replace

import pytest
from helpers.cluster_configs import config_of

from ddl.costs import cluster_clock
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.costs.scale import recorded
from ddl.engine import traffic
from ddl.perf import patterns, scaling
from ddl.perf.cluster_file import named
from ddl.perf.placement import table_job
from ddl.perf.plan import PlanRequest, plan
from ddl.perf.scaling import Transport
from ddl.run import virtual_time
from experiments.netbench import expected

WORKERS, BATCH = 8, 32
ALGORITHMS = {
  "sync_sgd": {}, "local_sgd": {"period": 4}, "dasgd": {"period": 4, "delay": 2}, "easgd": {"period": 2},
  "diloco": {"period": 8},
}  # fmt: skip


@pytest.mark.parametrize("cluster", ["ethernet_10g", "h100_ib400"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_commands_predict_the_same_seconds(name, cluster, monkeypatch):
  settings = ALGORITHMS[name]
  placed = table_job("alexnet", named(cluster))
  job, target = placed.job, placed.cluster
  work, sizes = scaling.work_of(job.step, job.params_bytes), recorded(name, job.params_bytes, **settings)
  (point,) = scaling.curve(sizes, work, target, [WORKERS], batch=BATCH, weak=True)

  def per_step(clock):
    return (clock(160) - clock(80)) / 80

  config = replace(config_of(name, WORKERS, 160, **settings), batch=BATCH)
  algorithm, params = config.make_algorithm(), vector(job.params_bytes)
  run = cluster_clock.on(config, pattern_of(algorithm, params, WORKERS), target, work)
  assert per_step(cluster_clock.clock(run, algorithm)) == pytest.approx(point.seconds, rel=1e-9)

  advice = plan(job, target, PlanRequest(batch=BATCH, workers=WORKERS), configured=(name, sizes))
  assert advice.speeds[-1].seconds == pytest.approx(point.seconds, rel=1e-9)
  if name == "sync_sgd":  # for the other algorithms, plan chooses other periods and delays
    assert advice.speeds[0].seconds == pytest.approx(point.seconds, rel=1e-9)

  # Virtual time knows only the seconds of an exchange: for synchronous SGD, those that the backward pass does not hide.
  waited = run.charged.local - run.charged.lead if run.charged.local else run.charged.exchanges[0]
  virtual = run.config.changed({"network": {"exchange_seconds": waited}})
  charged = virtual_time.charges(virtual, traffic.of(algorithm, params, WORKERS))
  assert per_step(virtual_time.lockstep_seconds(virtual, algorithm, charged)) == pytest.approx(point.seconds, rel=1e-9)

  # netbench measures on CPUs, where gradients do not overlap the backward pass, and prices Gloo's all-reduce.
  monkeypatch.setattr(expected, "price", lambda ops, hosts, link: patterns.seconds(tuple(ops), hosts, target.network))
  transport = Transport(overlap=name != "sync_sgd", bucket=float("inf"))
  (sequential,) = scaling.curve(sizes, work, target, [WORKERS], batch=BATCH, weak=True, transport=transport)
  period = settings.get("period", 1)
  config = config.changed({"times": {"name": "lognormal"}})  # whose jitter it sets to 0
  predicted = expected.Expected(config, params, target.network.between, period, overlap=True)
  assert predicted.predicted(run.config.times.seconds) / period == pytest.approx(sequential.seconds, rel=1e-9)


@pytest.mark.parametrize("cluster", ["ethernet_10g", "h100_ib400"])
@pytest.mark.parametrize("name, settings", [
  ("async_sgd", {}), ("async_easgd", {"period": 4}), ("round_robin_easgd", {}), ("gosgd", {}),
])  # fmt: skip
@pytest.mark.parametrize("workers", [8, 16])
def test_visits_take_the_same_seconds(name, settings, cluster, workers):
  """Also if the workers of a node share its link to the servers."""
  placed = table_job("alexnet", named(cluster))
  job, target = placed.job, placed.cluster
  work, sizes = scaling.work_of(job.step, job.params_bytes), recorded(name, job.params_bytes, **settings)
  (point,) = scaling.curve(sizes, work, target, [workers], batch=BATCH, weak=True)
  config = replace(config_of(name, workers, 160, **settings), batch=BATCH)
  algorithm = config.make_algorithm()
  run = cluster_clock.on(config, pattern_of(algorithm, vector(job.params_bytes), workers), target, work)
  clock = cluster_clock.clock(run, algorithm)
  assert (clock(160) - clock(80)) / 80 == pytest.approx(point.seconds, rel=1e-9)
