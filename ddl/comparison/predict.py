"""Predict the times of a comparison's runs on clusters (`compare --cluster`), and break-even bandwidths."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl import files
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.costs import cluster_clock, step_cost
from ddl.costs.cluster_clock import ALONE, ClusterRun, Members, pattern_of
from ddl.perf import bounds, cluster_file, scaling
from ddl.perf.cluster import Cluster
from ddl.perf.patterns import Pattern
from ddl.perf.scaling import StepWork
from ddl.report.reader import common_runs, read_run
from ddl.report.statistics import crossing, log_summary
from ddl.run import folder, virtual_time
from ddl.run.build import Components, param_shapes, params_bytes

BANDWIDTHS = 1e3, 1e15  # bytes per second; the range that is searched for break-even bandwidths


class Entrant(NamedTuple):
  """An algorithm of the comparison, with its runs."""

  experiment: Experiment
  algorithm: Any  # an Algorithm or a ServerAlgorithm
  pattern: Pattern
  seeds: list[int]
  steps: list[np.ndarray]  # for each seed, the steps of its evaluations; empty for a run without metrics
  hits: list[float]  # step at which each seed meets the target, interpolated between evaluations; NaN if never
  members: Members = ALONE  # the devices of each worker


def add_clusters(path: Path, names: Sequence[str], components: Mapping[str, Components], options: RunOptions) -> None:
  """Predict the seconds of a finished comparison on clusters, and add them to its comparison.json.

  Only the seeds that all algorithms have in common are predicted; if there are none, all seeds of each algorithm.
  """
  page = files.read_json(path / folder.COMPARISON)
  runs = {entry["label"]: entry["runs"] for entry in page["algorithms"]}
  clusters = check_clusters(names, [components[label].experiment for label in runs], options)
  common = common_runs(runs)
  groups = [common] if any(common.values()) else [{label: runs[label]} for label in runs]
  entries = [_predict(path, clusters, components, group, page["target"], options) for group in groups]
  files_by_name = {cluster_file.display_name(name): name for name in cluster_file.absolute(names)}
  page["clusters"] = []
  for first, *others in zip(*entries, strict=True):
    for other in others:
      first["algorithms"] |= other["algorithms"]
    page["clusters"].append(first | {"file": files_by_name[first["name"]]})
  folder.write_json(path / folder.COMPARISON, page)


def check_clusters(names: Sequence[str], experiments: Iterable[Experiment], options: RunOptions) -> dict[str, Cluster]:
  """Load clusters and return them by name. Raises ValueError if an experiment cannot be predicted on one of them."""
  clusters: dict[str, Cluster] = {}
  for experiment in experiments:
    clusters |= cluster_clock.clusters_by_name(names, experiment, options.members)
  return clusters


def _predict(
  path: Path, clusters: Mapping[str, Cluster], components: Mapping[str, Components], runs: Mapping[str, Sequence[str]],
  target: Mapping[str, Any], options: RunOptions,
) -> list[dict[str, Any]]:  # fmt: skip
  """Predict the runs on each cluster; return one entry of comparison.json per cluster.

  runs: run folders by algorithm label; target: {"metric": name, "value": value to reach, "higher_is_better": bool}.
  """
  first = next(components[label] for label in runs)
  split = step_cost.worker_members(first, options.members, options.sharding)
  entrants = {label: _entrant(path, components[label], runs[label], target, split) for label in runs}
  batch = first.experiment.batch // first.experiment.microbatches
  step = partial(step_cost.compiled_step, first, members=options.members, sharding=options.sharding)
  parts, nbytes = step_cost.step_parts(first, batch, step), params_bytes(first.model)
  work = scaling.work_of(parts, nbytes)
  return [entry(name, cluster, entrants, work, nbytes) for name, cluster in clusters.items()]


def _entrant(
  path: Path, components: Components, runs: Sequence[str], target: Mapping[str, Any], members: Members
) -> Entrant:
  seeds, steps, hits = [], [], []
  for run in runs:
    columns = read_run(path / run) if (path / run / folder.METRICS).exists() else None
    seeds.append(int(run.rpartition("-")[2]))
    steps.append(columns["step"] if columns else np.empty(0))
    values = columns[target["metric"]] if columns else np.empty(0)
    met = crossing(steps[-1], values, target["value"], target["higher_is_better"])
    hits.append(met.step if met else np.nan)
  pattern = pattern_of(components.algorithm, param_shapes(components.model), components.experiment.workers)
  return Entrant(components.experiment, components.algorithm, pattern, seeds, steps, hits, members)


def entry(
  name: str, cluster: Cluster, entrants: Mapping[str, Entrant], work: StepWork, nbytes: float
) -> dict[str, Any]:
  """Return one cluster's entry of comparison.json. work: the work of a local step; nbytes: bytes of the parameters."""
  algorithms, means = {}, {}
  for label, entrant in entrants.items():
    cluster_runs = [_on_cluster(entrant, seed, cluster, work) for seed in entrant.seeds]
    clocks = [cluster_clock.clock(cluster_run, entrant.algorithm) for cluster_run in cluster_runs]
    seconds = [[clock(step) for step in steps] for clock, steps in zip(clocks, entrant.steps, strict=True)]
    if not np.isnan(entrant.hits).any():
      means[label] = log_summary(list(map(np.interp, entrant.hits, entrant.steps, seconds)))[0]
    algorithms[label] = {"seconds": seconds, **_figures(entrant, cluster_runs, clocks)}
  devices, members = max((e.experiment.workers * e.members.count, e.members) for e in entrants.values())
  link = cluster.network.main_link(devices)
  complete = {label: entrants[label] for label in sorted(means, key=lambda label: means[label])}
  return {
    "name": name,
    "title": cluster.title,
    "source": cluster.source,
    "flop_per_example": sum(part.flop for part in work.parts),
    "params_bytes": nbytes,
    "link": "between nodes" if link == cluster.network.between else "inside a node",
    "latency": link.latency,
    "bandwidth": link.bandwidth,
    "algorithms": algorithms,
    "members": {"count": members.count, "seconds": members.seconds(cluster)},
    "break_even": break_even(cluster, devices, complete, work),
  }


def _on_cluster(entrant: Entrant, seed: int, cluster: Cluster, work: StepWork) -> ClusterRun:
  cluster_run = cluster_clock.on(entrant.experiment, entrant.pattern, cluster, work, entrant.members)
  return cluster_run._replace(config=replace(cluster_run.config, seed=seed))


def _figures(
  entrant: Entrant, cluster_runs: Sequence[ClusterRun], clocks: Sequence[Callable[[float], float]]
) -> dict[str, Any]:
  """Return the predicted seconds of a step and its messages and, with a server, the staleness; means over the seeds."""
  algorithm, first = entrant.algorithm, cluster_runs[0].config  # the parts do not depend on the seed
  out: dict[str, Any] = {
    "step_seconds": first.times.seconds,
    "seconds_per_step": float(np.mean([clock(first.steps) for clock in clocks])) / first.steps,
  }
  if not entrant.experiment.has_server:
    charged = (cluster_runs[0].charged.local, *cluster_runs[0].charged.exchanges)
    mean = cluster_runs[0].mean  # cost of the exchange before an evaluation, used if the algorithm has no other
    return out | {"exchange_seconds": max((cost for cost in charged if isinstance(cost, float)), default=mean)}
  stale: dict[str, list[float]] = {"trained": [], "there": []}
  for config in (cluster_run.config for cluster_run in cluster_runs):
    trained = replace(entrant.experiment, seed=config.seed)
    stale["trained"].append(cluster_clock.staleness(virtual_time.whole_run(trained, algorithm)[0]))
    stale["there"].append(cluster_clock.staleness(cluster_clock.schedule(config, algorithm)))
  parts = {key: getattr(first.network, key) for key in ("message_seconds", "service_seconds")}
  return out | parts | {"staleness": {key: float(np.mean(values)) for key, values in stale.items()}}


def break_even(
  cluster: Cluster, devices: int, complete: Mapping[str, Entrant], work: StepWork
) -> dict[str, Any] | None:
  """Return the bandwidths at which another algorithm becomes the fastest, and the fastest two at each of BANDWIDTHS.

  Algorithms are ranked by the geometric mean over seeds of the seconds to the target. In the result, `bandwidths` lists
  the break-even bandwidth of each seed, or None for a seed without one. Return None for fewer than two algorithms, or
  if the target is met without training.

  Args:
    cluster: the predicted cluster.
    devices: the number of devices of all workers.
    complete: the algorithms that reach the target with every seed, fastest first.
    work: the work of a local step.
  """
  if len(complete) < 2 or any(0.0 in entrant.hits for entrant in complete.values()):
    return None
  winner, present = next(iter(complete)), cluster.network.main_link(devices).bandwidth

  def seconds(entrant: Entrant, index: int) -> Any:
    steps, hit = entrant.steps[index], entrant.hits[index]
    after = int(np.searchsorted(steps, hit))
    around = steps[max(after - 1, 0) : after + 1]  # the evaluations before and after the target is met

    @cache
    def at(bandwidth: float) -> float:
      run = _on_cluster(entrant, entrant.seeds[index], cluster.with_bandwidth(devices, bandwidth), work)
      run = run._replace(config=replace(run.config, steps=int(around[-1])))
      clock = cluster_clock.clock(run, entrant.algorithm)
      return float(np.interp(hit, around, [clock(evaluated) for evaluated in around]))

    return at

  by_seed = {label: [seconds(entrant, i) for i in range(len(entrant.seeds))] for label, entrant in complete.items()}
  means: dict[str, bounds.Seconds] = {}
  for label, seeds in by_seed.items():
    means[label] = lambda bandwidth, seeds=seeds: log_summary([at(bandwidth) for at in seeds])[0]
  changes = []
  for end, opposite in (BANDWIDTHS, BANDWIDTHS[::-1]):
    change = bounds.overtaken(means, present, end)
    if change is None:
      continue
    other, mean = change
    bandwidths = []
    for first, second in zip(by_seed[winner], by_seed[other], strict=True):
      # In a seed where the other algorithm already wins, search in the opposite direction.
      limit = end if first(present) <= second(present) else opposite
      change = bounds.overtaken({winner: first, other: second}, present, limit)
      bandwidths.append(change and change[1])
    changes.append({"other": other, "mean": mean, "bandwidths": bandwidths})
  ends = [sorted(((at(bandwidth), label) for label, at in means.items()))[:2] for bandwidth in BANDWIDTHS]
  return {
    "winner": winner,
    "crossings": changes,  # at lower bandwidths, then at higher ones
    "searched": list(BANDWIDTHS),
    "ends": [{"first": a[1], "second": b[1], "ratio": a[0] / b[0]} for a, b in ends],  # at both ends of "searched"
  }
