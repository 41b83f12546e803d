"""The Optuna studies of a sweep: one per algorithm label, in a journal file in the sweep's folder.

A journal is an append-only text file. It needs no SQL and works on NFS, where SQLite's locks do not. Only the main
process writes it; the other processes keep an identical copy in memory.
"""

import os
import zlib
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import TrialState

from ddl.config.sweep import Bounds, Point, Space, Sweep, logarithmic, points
from ddl.errors import OptionError
from ddl.run.folder import STUDY, differences
from ddl.run.metrics import Metric

STARTUP = 4  # trials at Halton points before TPE, which needs earlier results
RUNGS = (1, 3)  # in ninths of the steps; about a third of the trials continue after each rung
COMPLETE, PRUNED, DIVERGED, INVALID = "complete", "pruned", "diverged", "invalid"


class Halton(optuna.samplers.BaseSampler):
  """A sampler that returns the n-th Halton point for trial n.

  Optuna's QMCSampler instead draws the first trial at random and uses a corner of the search space as the second, and
  a study resumed with it would continue with other points.
  """

  def __init__(self, space: Space, trials: int):
    """Compute the points. Raises ValueError if they do not fit into memory."""
    self._points = points(space, trials)

  def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
    """Return {}, because `sample_independent` samples all hyperparameters."""
    return {}

  def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
    """Return {}, because `sample_independent` samples all hyperparameters."""
    return {}

  def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
    """Return the value of a hyperparameter at the trial's Halton point."""
    return self._points[trial.number][param_name]


class LabelStudy:
  """The trials of one algorithm label: `pending` returns unfinished and new trials, `tell` finishes a trial."""

  def __init__(self, storage: JournalStorage, sweep: Sweep, label: str, metric: Metric):
    """Create or load the study of an algorithm label. metric: the metric by which trials are compared."""
    self._space, self._trials, self.metric = sweep.spaces[label], sweep.trials, metric
    self._halton, self._tpe = Halton(self._space, sweep.trials), sweep.sampler == "tpe"
    self._key = f"{sweep.experiments[label].seed}/{label}"
    self._study = optuna.create_study(
      storage=storage,
      study_name=label,
      direction="maximize" if metric.higher_is_better else "minimize",
      pruner=optuna.pruners.SuccessiveHalvingPruner(1, 3) if sweep.pruning else optuna.pruners.NopPruner(),
      load_if_exists=True,
    )
    if not self._study.user_attrs:
      self._study.set_user_attr("sweep", sweep.to_json(label))

  def pending(self, most: int) -> list[tuple[optuna.Trial, Point]]:
    """Return up to `most` trials with their settings, interrupted ones first; [] once all are finished."""
    trials = self._study.get_trials(deepcopy=False)
    unfinished = {trial.number: trial._trial_id for trial in trials if trial.state == TrialState.RUNNING}
    out = []
    for number in [*unfinished, *range(len(trials), self._trials)][:most]:
      self._study.sampler = self._sampler(number)
      trial = optuna.Trial(self._study, unfinished[number]) if number in unfinished else self._study.ask()
      out.append((trial, {key: _suggest(trial, key, bounds) for key, bounds in self._space.items()}))
    return out

  def tell(self, trial: optuna.Trial, outcome: str, score: dict[str, float] | None, seeds: list[Any]) -> None:
    """Finish a trial.

    Args:
      outcome: "complete", "pruned", "diverged" or "invalid".
      score: metric -> mean over the seeds; None if the run of a seed did not complete.
      seeds: the metrics of the seeds before the first one whose run did not complete, one dictionary per seed.
    """
    trial.set_user_attr("outcome", outcome)
    trial.set_user_attr("score", score)
    trial.set_user_attr("seeds", seeds)
    if score:
      self._study.tell(trial, score[self.metric.name])
    else:
      self._study.tell(trial, state=TrialState.PRUNED)  # samplers learn from pruned trials, but not from failed ones

  def finished(self) -> list[tuple[Point, dict[str, Any]]]:
    """Return (point, {"outcome", "score", "seeds"}) of each finished trial, in order."""
    trials = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return [({key: trial.params[key] for key in self._space}, trial.user_attrs) for trial in trials]

  def judge(self, trial: optuna.Trial, line: dict[str, Any], steps: int) -> None:
    """Report a line of metrics to Optuna if it is the trial's first one at or after a rung (see RUNGS).

    Raises TrialPruned if the trial is then not in the best third.
    """
    if not 0 < line["step"] < steps:
      return
    rung = max((rung for rung in RUNGS if 9 * line["step"] >= rung * steps), default=0)
    reported = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
    if rung and rung not in reported:
      trial.report(line[f"test_{self.metric.name}"], rung)
      if trial.should_prune():
        raise optuna.TrialPruned

  def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of a trial, seeded by the trial's number so that a resumed sweep tries the same points."""
    if not self._tpe or number < STARTUP:
      return self._halton
    return optuna.samplers.TPESampler(n_startup_trials=1, seed=zlib.crc32(f"{self._key}/{number}".encode()))


class _Memory(BaseJournalBackend):
  """A journal in memory."""

  def __init__(self, logs: list[dict[str, Any]]):
    self._logs = list(logs)

  def read_logs(self, log_number_from: int) -> Any:
    return iter(self._logs[log_number_from:])

  def append_logs(self, logs: list[dict[str, Any]]) -> None:
    self._logs += logs


def saved(folder: Path, sweep: Sweep) -> list[dict[str, Any]]:
  """Read the records of a folder's journal; return [] without a journal.

  Raises ValueError if the journal is damaged, is of another sweep, or has more trials of a label than requested.
  """
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  if not (file := folder / STUDY).exists():
    return []
  try:
    logs = list(JournalFileBackend(str(file)).read_logs(0))
    storage = JournalStorage(_Memory(logs))
    names = optuna.get_all_study_names(storage)
    studies = {name: optuna.load_study(study_name=name, storage=storage) for name in names}
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f"{file} is damaged ({error}). Sweep again in another workdir.") from error
  for label in {*studies} & {*sweep.experiments}:
    if (recorded := studies[label].user_attrs.get("sweep")) and (differ := differences(recorded, sweep.to_json(label))):
      reason = f"{folder} contains a sweep with a different config ({label}: {'; '.join(differ[:5])})"
      raise ValueError(f"{reason}; pass the recorded config to resume it")
    if (count := len(studies[label].trials)) > sweep.trials:
      condition = f"at least {count} (the number of trials of '{label}' in {folder})"
      raise OptionError("config.sweep.trials", condition, sweep.trials)
  return logs


def storage(folder: Path, logs: list[dict[str, Any]], writes: bool) -> JournalStorage:
  """Open the storage of all studies. logs: the result of `saved`, which processes with writes=False keep in memory."""
  if not writes:
    return JournalStorage(_Memory(logs))
  if (file := folder / STUDY).exists():
    lines = file.read_bytes().rpartition(b"\n")
    os.truncate(file, len(lines[0]) + len(lines[1]))  # drop an incomplete last line of a killed process
  return JournalStorage(JournalFileBackend(str(file)))


def _suggest(trial: optuna.Trial, key: str, bounds: Bounds) -> Any:
  """Let Optuna choose the value of a hyperparameter: one of a list of choices, or an int or float in a range."""
  if isinstance(bounds, list):
    return trial.suggest_categorical(key, bounds)
  is_integer = all(isinstance(end, int) for end in bounds)
  suggest: Any = trial.suggest_int if is_integer else trial.suggest_float
  return suggest(key, *bounds, log=logarithmic(bounds))
