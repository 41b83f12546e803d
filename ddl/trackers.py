"""Hooks that log runs to experiment trackers: Weights & Biases and MLflow, each imported only if its hook is used.

Pass `hooks=[ddl.trackers.wandb]` to `ddl.train` or `ddl.compare`, or `--hooks=ddl.trackers:mlflow` on the command line.
The trackers' environment variables, such as WANDB_PROJECT or MLFLOW_TRACKING_URI, select where runs are logged.
"""

import importlib
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files, hosts
from ddl.errors import OptionError
from ddl.run.folder import METRICS, flat, metric_lines, write_json
from ddl.run.hooks import RunHook, StepInfo

PROJECT = "ddl"  # default project of W&B and experiment of MLflow
STATUS = {"complete": "FINISHED", "diverged": "FAILED", "failed": "FAILED", "stopped": "KILLED"}  # of an MLflow run


class Description(NamedTuple):
  """The name, group and config of a run for a tracker."""

  name: str  # label and seed
  group: str | None  # the name of the comparison's folder; None for a run of `train`
  config: dict[str, Any]  # the label and the experiment's settings, nested


class Logged(NamedTuple):
  """A run as a tracker has logged it."""

  id: str  # the tracker's id of the run
  step: int  # the last logged step; -1: none
  handle: Any = None  # the client object for logging


def describe(info: StepInfo) -> Description:
  """Return the description of a run."""
  experiment, folder = info.components.experiment, info.folder.absolute()
  compared = info.options.recorded.get("command") == "compare"  # the folder is <comparison>/<label>/seed-<seed>
  label, group = (folder.parent.name, folder.parents[1].name) if compared else (experiment.label, None)
  return Description(f"{label}/seed-{experiment.seed}", group, {"label": label} | experiment.to_json())


class Tracker(RunHook):
  """Base class of hooks that log each run of ddl as one run of a tracker, in the main process.

  The file <package>.json in a run's folder stores the tracker's id of the run and its last logged step. A resumed run
  continues the tracker's run and first logs the lines of metrics.jsonl after the tracker's last step. Steps that the
  run repeats after a checkpoint is restored are not logged again, because logged steps cannot be overwritten.
  """

  package, requirement = "", ""  # import name and name on PyPI
  entry = ""  # the name in `package` that the hook uses

  def __init__(self) -> None:
    self._runs: dict[Path, Logged] = {}

  @property
  def module(self) -> Any:
    """The package of the tracker."""
    return importlib.import_module(self.package)

  def check(self) -> None:
    """Raise OptionError if the package is not installed."""
    try:
      getattr(self.module, self.entry)  # a folder ./wandb of offline runs can be imported, but lacks this name
    except (ImportError, AttributeError) as error:
      advice = f"Run `pip install {self.requirement}`."
      raise OptionError(self.package, f"installed for hooks=ddl.trackers:{self.package}", advice=advice) from error

  def __call__(self, info: StepInfo) -> None:
    """Log the lines of metrics that the tracker lacks; on a run's first call, start or resume the tracker's run."""
    if not hosts.is_main():
      return
    lines: Sequence[Mapping[str, float]] = [info.metrics]
    if info.folder not in self._runs:
      self._runs[info.folder] = self.start(describe(info), self._recorded(info.folder))
      self._record(info.folder, self._runs[info.folder])
      lines = metric_lines(info.folder / METRICS)
    run = self._runs[info.folder]
    for line in lines:
      if line["step"] > run.step:
        self.log(run, int(line["step"]), {name: value for name, value in line.items() if name != "step"})
    self._runs[info.folder] = run._replace(step=max(run.step, info.step))

  def close(self, info: StepInfo, outcome: str) -> None:
    """Finish the tracker's run."""
    if run := self._runs.pop(info.folder, None):
      self.finish(run, outcome)
      self._record(info.folder, run)

  def _recorded(self, folder: Path) -> Logged | None:
    file = folder / f"{self.package}.json"
    return Logged(**files.read_json(file, "; remove it to log to a new run")) if file.exists() else None

  def _record(self, folder: Path, run: Logged) -> None:
    write_json(folder / f"{self.package}.json", {"id": run.id, "step": run.step})

  def start(self, run: Description, before: Logged | None) -> Logged:
    """Start the tracker's run, or resume it. before: the recorded run; None for a new one."""
    raise NotImplementedError

  def log(self, run: Logged, step: int, metrics: Mapping[str, float]) -> None:
    """Log the metrics of a step."""
    raise NotImplementedError

  def finish(self, run: Logged, outcome: str) -> None:
    """Finish the tracker's run. outcome: see `RunHook.close`."""
    raise NotImplementedError


class WeightsAndBiases(Tracker):
  """A hook that logs to Weights & Biases; it can log several runs at the same time."""

  package, requirement, entry = "wandb", "wandb", "init"

  def start(self, run: Description, before: Logged | None) -> Logged:
    """Start or resume a run of W&B."""
    settings = self.module.setup().settings  # from environment variables and settings files
    offline = settings.mode in ("offline", "dryrun")
    handle = self.module.init(
      project=settings.project or PROJECT, name=run.name, group=run.group,
      config=run.config,  # nested, because keys must not contain dots
      id=before.id if before else uuid.uuid4().hex[:8], reinit="create_new",
      # `wandb sync` appends an offline run to its earlier part; with "allow", it would also change repeated steps.
      resume="allow" if before and not offline else None,
    )  # fmt: skip
    return Logged(handle.id, before.step if before and offline else handle.starting_step - 1, handle)

  def log(self, run: Logged, step: int, metrics: Mapping[str, float]) -> None:
    """Log the metrics of a step."""
    run.handle.log(metrics, step=step, commit=True)

  def finish(self, run: Logged, outcome: str) -> None:
    """Finish the run with the state "finished" if the outcome is "complete", else "failed"."""
    run.handle.finish(exit_code=int(outcome != "complete"))


class MLflow(Tracker):
  """A hook that logs to MLflow through its client, which does not change the active run."""

  package, requirement, entry = "mlflow", "mlflow-skinny", "MlflowClient"

  def start(self, run: Description, before: Logged | None) -> Logged:
    """Start or resume a run of MLflow."""
    client = self.module.MlflowClient()
    if before:
      client.update_run(before.id, status="RUNNING")
      steps = [metric.step for metric in client.get_metric_history(before.id, "examples")]  # in every line of metrics
      return Logged(before.id, max(steps, default=-1), client)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    tags = {"group": run.group} if run.group else {}
    run_id = client.create_run(experiment_id, tags=tags, run_name=run.name).info.run_id
    parameter = self.module.entities.Param
    client.log_batch(run_id, params=[parameter(key, str(value)) for key, value in flat(run.config).items()])
    return Logged(run_id, -1, client)

  def log(self, run: Logged, step: int, metrics: Mapping[str, float]) -> None:
    """Log the metrics of a step."""
    metric, now = self.module.entities.Metric, int(1000 * time.time())
    run.handle.log_batch(run.id, [metric(name, value, now, step) for name, value in metrics.items()])

  def finish(self, run: Logged, outcome: str) -> None:
    """Finish the run with the status of its outcome."""
    run.handle.set_terminated(run.id, STATUS[outcome])


wandb, mlflow = WeightsAndBiases(), MLflow()
