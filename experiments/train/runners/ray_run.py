"""`--runtime=ray`: a server algorithm in real time in many processes, with checkpoints of its shards."""

import json
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.perf.units import counted
from ddl.runtime.rounds.consensus import Consensus
from experiments.config.experiment import initial_key
from experiments.config.options import RunOptions
from experiments.train.build import Components, build
from experiments.train.folder.run_dir import METRICS, RunFolder
from experiments.train.metrics import noise_scale
from experiments.train.metrics.lines import FIGURES
from experiments.train.processes import say
from experiments.train.runners.realtime import RealTimeRun, stop_when, take_batches
from experiments.train.runners.runner import Report, StopRequest


class RayRun(RealTimeRun):
  """Actors of Ray; the shards of its master save themselves."""

  def __init__(self, components: Components, options: RunOptions):
    """Raises ValueError for a barrier that does not go with Ray, or a model too small for so many shards."""
    from ddl.runtime.ray_ps.transport import cut

    super().__init__(components)
    self._options, self._cluster = options, None
    self.layout: dict[str, Any] = {"shards": options.shards}
    sizes = [x.size for x in jax.tree.leaves(jax.eval_shape(components.model.init, initial_key(0))[0])]
    cut(sum(sizes), options.shards)

  def open(self, folders: Sequence[RunFolder], resume: bool) -> Sequence[dict[str, Any]] | None:
    """See `Runner`. ValueError if Ray is missing, too small or out of reach."""
    from ddl.runtime.ray_ps.cluster import RayCluster

    folder, config, options = folders[0], self.components.experiment, self._options

    def make(worker: int) -> tuple[Any, Any]:
      del worker
      own = build(config)
      return own.model, take_batches(own)

    self._cluster = RayCluster(
      self.algorithm, make, workers=config.workers, folder=folder.checkpoints, resume=resume, seed=config.seed,
      barrier=self.barrier, shards=options.shards, address=options.ray_address or None, cpus=options.worker_cpus,
      gpus=options.worker_gpus, checkpoint_every=options.checkpoint_every * config.workers // self.algorithm.period,
    )  # fmt: skip
    self._init(folder)
    found = covered(folder, self._cluster.label or 0) if resume else None
    return [found] if found else None

  def run(
    self, figures: Sequence[dict[str, Any]], report: Callable[[Report], object], asked: StopRequest
  ) -> int | None:
    """See `Runner`. ValueError if a shard dies."""
    assert self._cluster
    self._begin(figures[0], report, None)

    def watch(snapshot: Any) -> None:
      params, extra = jax.tree.map(jnp.asarray, (snapshot.params, snapshot.extra))
      losses = np.concatenate([np.zeros(0, np.float32), *snapshot.losses])
      self._add(snapshot.progress, losses, lambda: Consensus(params, extra, None), report)

    stop_when(asked, self._cluster.stop)
    say(f"starting {counted(self.components.experiment.workers, 'worker')}, each of which loads the model and compiles")
    return self._end(self._cluster.run(*self.model, self.total, watch, [count for count, _ in self.due]))

  def kept(self) -> str:
    """See `Runner`."""
    visit = self._cluster and self._cluster.newest()
    return "there was no checkpoint yet" if visit is None else f"the last good checkpoint, of visit {visit}, is kept"

  def close(self) -> None:
    """End Ray's processes."""
    if self._cluster:
      self._cluster.close()


def covered(folder: RunFolder, done: int) -> dict[str, Any] | None:
  """Figures of the last line of metrics that a checkpoint of so many visits covers; a line that a crash cut is none."""
  try:
    whole = (line for line in (folder.path / METRICS).read_text().splitlines(keepends=True) if line.endswith("\n"))
    lines = [line for line in map(json.loads, whole) if int(line["visits"]) <= done]
    if not lines:
      return None
    last = lines[-1]
    more = {"step": last["step"], "nbytes": last["bytes_sent"], "seconds": last["seconds"]}
    more["noise"] = reduce(noise_scale.recent, lines, FIGURES["noise"])
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise ValueError(f"{folder.path / METRICS} is damaged ({error}); train again in another --workdir") from error
  return FIGURES | more | {"lines": len(lines), "crc": None, "last": last}
