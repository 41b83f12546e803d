"""`ddl.train`, `ddl.compare`, `ddl.sweep` and `ddl.load`: the commands as functions, whose results are values."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ddl import files
from ddl.api import Data, Model, Source
from ddl.runtime.consensus import Consensus
from experiments.compare import compare as comparing
from experiments.config.base import base, with_own
from experiments.config.catalog import REGISTRIES, own
from experiments.config.comparison import Comparison
from experiments.config.config_file import absolute
from experiments.config.config_file import load as load_config
from experiments.config.experiment import Experiment
from experiments.config.factories import Config, check_keys
from experiments.config.options import RunOptions
from experiments.config.sweep import Sweep
from experiments.config.variants import apply, recorded
from experiments.report import frames, reader
from experiments.train import build as made
from experiments.train import run_dir, saved_model
from experiments.train import train as training
from experiments.train.evaluate import Evaluator
from experiments.train.workdir import workdir

if TYPE_CHECKING:
  import pandas as pd

NOT_RECORDED = ("workdir", "resume", "command", "recorded")
Given = str | Path | ConfigDict | None  # a config file, the config itself, or `base()`


@dataclass(frozen=True)
class Run:
  """A run that is complete, or stopped at a checkpoint. The model is that of the last checkpoint or of the end."""

  folder: Path

  @cached_property
  def experiment(self) -> Experiment:
    """Its experiment, with every default filled in."""
    return Experiment.from_json(run_dir.read_json(self.folder / run_dir.CONFIG))

  @property
  def config(self) -> dict[str, Any]:
    """Its config: {"algorithm": {"name": ..., ...}, "workers": ..., ...}."""
    return self.experiment.to_json()

  @cached_property
  def metrics(self) -> "pd.DataFrame":
    """A row per evaluation: step, examples, epoch, train_loss, test_loss, bytes_sent, seconds, ..."""
    import pandas as pd

    return pd.read_json(self.folder / run_dir.METRICS, lines=True, precise_float=True)

  @cached_property
  def _components(self) -> made.Components:
    return made.build(self.experiment)

  @property
  def model(self) -> Model:
    """Its `init`, `loss` and `metrics`."""
    return self._components.model

  @property
  def data(self) -> Data:
    """Its examples."""
    return self._components.data

  @cached_property
  def _saved(self) -> saved_model.SavedModel:
    return saved_model.load(self.folder, self.model)

  @property
  def step(self) -> int:
    """The step after which the model was saved."""
    return self._saved.step

  @property
  def params(self) -> Any:
    """The consensus parameters, on the host."""
    return self._saved.params

  @property
  def extra(self) -> Any:
    """Their non-trained state (batch statistics), on the host."""
    return self._saved.extra

  def evaluate(self, source: Source | None = None) -> dict[str, float]:
    """The mean "loss", and "accuracy" where there is one, over a source; default: the test examples."""
    params, extra = jax.tree.map(jnp.asarray, (self.params, self.extra))
    return Evaluator(self.model, source or self.data.test)(Consensus(params, extra, None))


@dataclass(frozen=True)
class Compared:
  """A comparison that was made."""

  folder: Path

  @cached_property
  def info(self) -> dict[str, Any]:
    """What comparison.json holds: target, seeds, versions, an entry per algorithm."""
    return run_dir.read_json(self.folder / run_dir.COMPARISON)

  @property
  def report(self) -> Path:
    """The page."""
    return self.folder / "report.html"

  @cached_property
  def runs(self) -> dict[str, list[Run]]:
    """Label -> a run per seed."""
    return {each["label"]: [Run(self.folder / path) for path in each["runs"]] for each in self.info["algorithms"]}

  @cached_property
  def _read(self) -> reader.Comparison:
    return reader.read(self.folder)

  @cached_property
  def metrics(self) -> "pd.DataFrame":
    """Every evaluation of every run; columns: see `experiments.report.frames.metrics_frame`."""
    return frames.metrics_frame(self._read)

  @cached_property
  def table(self) -> "pd.DataFrame":
    """A row per label, with intervals; columns: see `experiments.report.frames.table_frame`."""
    return frames.table_frame(self._read)

  @cached_property
  def pairs(self) -> "pd.DataFrame":
    """A row per quantity and pair of labels; columns: see `experiments.report.frames.pairs_frame`."""
    return frames.pairs_frame(self._read)


@dataclass(frozen=True)
class Swept:
  """A sweep that was made."""

  folder: Path

  @cached_property
  def info(self) -> dict[str, Any]:
    """What tuned.json holds: an entry per label."""
    return run_dir.read_json(self.folder / run_dir.TUNED)["algorithms"]

  @property
  def tuned(self) -> Path:
    """The file that `compare(tuned=...)` takes."""
    return self.folder / run_dir.TUNED

  @property
  def best(self) -> dict[str, dict[str, Any]]:
    """Label -> the best setting, such as {"optimizer": {"learning_rate": 0.1}}."""
    return {label: entry["best"] for label, entry in self.info.items()}

  @cached_property
  def trials(self) -> "pd.DataFrame":
    """A row per label and trial: outcome, each key that was tuned, mean loss and accuracy on the validation split."""
    import pandas as pd

    return pd.DataFrame(
      [
        {"label": label, "trial": number, "outcome": each["outcome"]}
        | {f"{section}.{key}": value for section, keys in each["setting"].items() for key, value in keys.items()}
        | (each["validation"] or {})
        for label, entry in self.info.items()
        for number, each in enumerate(entry["trials"])
      ]
    )


def train(config: Given = None, *, workdir: str | Path = "", options: RunOptions | None = None, **changes: Any) -> Run:
  """Train one algorithm and return the run, e.g. `ddl.train(algorithm={"name": "easgd", "period": 10}, steps=400)`.

  Args:
    config: a config file, a config of `experiments.config.base()`, or nothing for the defaults.
    workdir: a new folder for the run; default: runs/train-<algorithm>-<time>.
    options: how it is run; `RunOptions(resume=True)` goes on in `workdir`.
    changes: of the config: numbers, sections as {"name": ..., key: value}, a section's name alone, or a function of
      one's own in its place.

  Raises:
    ValueError: for an invalid config, options or folder; `Diverged`, one of them, if the loss is not finite.
    Stopped: after Ctrl-C; the run is saved.
  """
  chosen = resolve(config, changes)
  experiment = Experiment.from_config(chosen)
  options = _options("train", f"train-{experiment.algorithm.name}", workdir, options, chosen)
  training.train(experiment, options)
  return Run(Path(options.workdir))


def compare(
  config: Given = None,
  *,
  only: Sequence[str] = (),
  clusters: Sequence[str] = (),
  tuned: str | Path = "",
  workdir: str | Path = "",
  options: RunOptions | None = None,
  **changes: Any,
) -> Compared:
  """Run several algorithms over several seeds on one budget of examples, write the report, return the results.

  Args:
    config: as of `train`; `config.compare` has the labels, seeds and target, e.g.
      compare={"seeds": (0, 1), "algorithms": {"local": {"algorithm": {"name": "local_sgd"}}, ...}} as a change.
    only: labels or algorithms; clusters: names, to predict seconds for; tuned: tuned.json of a sweep.
    workdir, options, changes: as of `train`; `RunOptions(keep_models=True)` keeps the final models of all runs.

  Raises:
    ValueError, Stopped: as `train`; Failed: if every run diverged.
  """
  chosen = resolve(config, changes)
  comparison = Comparison.from_config(chosen, only, str(tuned), clusters)
  name = f"compare-{comparison.first.model.name}-{comparison.first.data.name}"
  options = _options("compare", name, workdir, options, chosen, only)
  comparing.compare(comparison, options)
  return Compared(Path(options.workdir))


def sweep(
  config: Given = None,
  *,
  only: Sequence[str] = (),
  trials: int = 0,
  workdir: str | Path = "",
  options: RunOptions | None = None,
  **changes: Any,
) -> Swept:
  """Tune each algorithm with the same number of trials on a validation split, and return what was found.

  Args:
    config: as of `train`; `config.compare.algorithms` has the labels, `config.sweep` what is tried, e.g.
      sweep={"space": {"local": {"period": (2, 16), "optimizer": {"momentum": [0.0, 0.9]}}}} as a change.
    only: labels or algorithms; trials: per label, 0 for the config's.
    workdir, options, changes: as of `train`.

  Raises:
    ValueError, Stopped: as `train`; ValueError if no trial of a label gave a result.
  """
  from experiments.compare import sweep as sweeping  # Optuna takes a third of a second to import

  chosen = resolve(config, changes)
  chosen.sweep.trials = trials or chosen.sweep.trials
  found = Sweep.from_config(chosen, only)
  options = _options("sweep", f"sweep-{found.first.model.name}-{found.first.data.name}", workdir, options, chosen, only)
  sweeping.sweep(found, options)
  return Swept(Path(options.workdir))


def load(folder: str | Path) -> Run | Compared | Swept:
  """Return what a folder holds: a run with its config, model, parameters and metrics, a comparison, or a sweep.

  Works on any number of devices, whatever the run had.

  Raises:
    ValueError: for a folder with none of these.
  """
  path = files.local(str(folder))
  if (path / run_dir.COMPARISON).exists():
    return Compared(path)
  if (path / run_dir.STUDY).exists() and (path / run_dir.TUNED).exists():
    return Swept(path)
  if not (path / run_dir.CONFIG).exists():
    raise ValueError(
      f"{path} holds neither a run ({run_dir.CONFIG}) nor a comparison ({run_dir.COMPARISON}) nor a sweep "
      f"({run_dir.TUNED})"
    )
  return Run(path)


def resolve(config: Given, changes: Mapping[str, Any]) -> Config:
  """The config with the changes. Raises ValueError for a key that does not exist, or a value of the wrong type."""
  chosen: Config = load_config(Path(config)) if isinstance(config, str | Path) else copy.deepcopy(config) or base()
  named = {kind: _section(kind, value) for kind, value in changes.items()}
  if isinstance(labels := dict(named.get("compare", {})).pop("algorithms", None), Mapping):
    named["compare"] = {key: value for key, value in named["compare"].items() if key != "algorithms"}
    with chosen.compare.unlocked():
      chosen.compare.algorithms = ConfigDict(
        {label: {kind: _section(kind, value) for kind, value in each.items()} for label, each in labels.items()}
      )
  if isinstance(space := dict(named.get("sweep", {})).pop("space", None), Mapping):
    named["sweep"] = {key: value for key, value in named["sweep"].items() if key != "space"}
    with chosen.sweep.unlocked():
      chosen.sweep.space = ConfigDict({label: dict(each) for label, each in space.items()})
  chosen = with_own(with_own(chosen), named)
  apply(chosen, base(), named, "the changes")
  check_keys(chosen, with_own(base(), chosen))
  return absolute(chosen)


def _section(kind: str, value: Any) -> Any:
  """A change as a config takes it: a section's name, or a function for it, as {"name": ...}."""
  if kind not in REGISTRIES or isinstance(value, Mapping):
    return value
  return {"name": value} if isinstance(value, str) else own(value)


def _options(
  command: str, what: str, folder: str | Path, options: RunOptions | None, config: Config, only: Sequence[str] = ()
) -> RunOptions:
  """With the folder, and with what `python run.py COMMAND --resume` needs to go on there."""
  options = options or RunOptions()
  path = workdir(what, replace(options, workdir=str(folder or options.workdir)))
  default = asdict(RunOptions())
  flags = {key: value for key, value in asdict(options).items() if value != default[key] and key not in NOT_RECORDED}
  if not options.overlap:
    flags["overlap"] = "off"
  if only:
    flags["only"] = list(only)
  record = {"command": command, "arguments": [], "options": flags, "config": recorded(config)}
  return replace(options, workdir=str(path.absolute()), command=(f"ddl.{command}",), recorded=record)
