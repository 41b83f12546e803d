"""`train --explain`: the tables of a dry run from the program with which a run makes its steps."""

from ddl.perf.placement import with_shares
from ddl.run.hooks import StepInfo
from ddl.run.processes import say
from experiments.dryrun import report
from experiments.dryrun.compiled import batch_shapes
from experiments.dryrun.program import of_run
from experiments.dryrun.report import figures
from experiments.dryrun.target import cluster_of


def explain(info: StepInfo) -> None:
  """Print them at the start of a run, with seconds if the devices' cluster is known. A hook."""
  if not info.first:
    return
  components, trainer = info.components, getattr(info.trainer, "all", info.trainer)  # all: where workers fail and join
  experiment, cluster = components.experiment, cluster_of(trainer.workers.device)
  cluster = cluster and with_shares(cluster, str(experiment.model.name))
  batch = batch_shapes(components.data, experiment.batch)
  programs = of_run(trainer, batch, experiment.steps, experiment.eval_every)
  described = figures(experiment.label, experiment, trainer, programs, cluster)
  tables = [report.summary([described], cluster), report.collectives(described, cluster is not None)]
  say("\n\n".join(tables + ([report.verdict(described, cluster)] if cluster else [])))
