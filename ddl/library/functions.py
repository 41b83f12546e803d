"""`ddl.train`, `ddl.compare` and `ddl.sweep`: the commands as functions, whose results are values."""

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ddl.api import Spec, Wrapper
from ddl.comparison import compare as comparing
from ddl.config import user_code
from ddl.config.base import DEFAULTS, base, renamed, switched, with_own
from ddl.config.comparison import Comparison, apply, recorded
from ddl.config.config_file import absolute
from ddl.config.config_file import load as load_config
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.config.registry import REGISTRIES, Config, check_keys
from ddl.config.sweep import Sweep
from ddl.config.user_code import own
from ddl.library import resume as library_resume
from ddl.library.results import Compared, Run, Swept, check_path, load
from ddl.library.resume import NOT_RECORDED
from ddl.library.words import in_calls
from ddl.perf import cluster_file
from ddl.ranges import NonNegativeInt, check_all
from ddl.report import schedule
from ddl.run import folder as run_dir
from ddl.run import train as training
from ddl.run.hooks import Hook, StepInfo
from ddl.run.workdir import workdir

__all__ = ["RunOptions", "StepInfo", "compare", "load", "own", "sweep", "train"]  # what `ddl` lends
EXAMPLES = {  # section: a value, and what a function in its place returns
  "algorithm": ('{"name": "local_sgd", "period": 10}', "a ddl.Algorithm (optimizer, *, settings -> algorithm)"),
  "wrapper": ('{"name": "topk", "share": 0.01}', "a ddl.Algorithm (algorithm, *, settings -> algorithm)"),
  "model": (
    '{"name": "mlp", "hidden": (64, 64)}',
    "a ddl.Model (meta, *, settings -> model), such as ddl.from_flax(module, meta)",
  ),
  "data": ('{"name": "npz", "path": "FILE.npz"}', "a ddl.Data (*, settings -> data)"),
  "optimizer": ('{"name": "adam", "learning_rate": 0.01}', "an optax transformation (rate, *, settings -> optimizer)"),
  "schedule": ('{"name": "cosine", "floor": 0.1}', "an optax schedule (rate, steps, *, settings -> schedule)"),
  "partition": ('{"name": "iid"}', "each worker's examples (size, labels, *, workers, seed -> arrays of indices)"),
}
Given = str | Path | ConfigDict | None  # a config file, the config itself, or `base()`


@in_calls()
def train(
  config: Given = None,
  *,
  workdir: str | Path = "",
  hooks: Sequence[Hook] = (),
  options: RunOptions | None = None,
  **changes: Any,
) -> Run:
  """Train one algorithm and return the run, e.g. `ddl.train(algorithm={"name": "easgd", "period": 10}, steps=400)`.

  Args:
    config: a config file, a config of `ddl.config.base()`, or nothing for the defaults.
    workdir: a new folder for the run; default: runs/train-<algorithm>-<time>.
    hooks: functions of a `ddl.StepInfo`, called after each evaluation and at the end; every process calls them.
    options: how it is run; `RunOptions(resume=True)` goes on in `workdir`, without a config and changes with those that
      the folder records.
    changes: of the config: numbers, sections as {"name": ..., key: value}, a section's name alone, or a function of
      one's own in its place.

  Raises:
    ValueError: for an invalid config, options or folder; `Diverged`, one of them, if the loss is not finite.
    Stopped: after Ctrl-C; the run is saved.
  """
  check_path("workdir", workdir)
  record = library_resume.recorded("train", config, changes, workdir, options)
  with library_resume.allowed_code(record, options):
    chosen = _chosen(config, changes, record)
    experiment = Experiment.from_config(chosen)
    options = library_resume.with_recorded(options, record)
    options = _options("train", f"train-{experiment.label}", workdir, options, chosen)
    training.train(experiment, _hooked(options, hooks, schedule.draw))
  return Run(Path(options.workdir), trust_code=True)  # whose code has been run


@in_calls()
def compare(
  config: Given = None,
  *,
  only: Sequence[str] = (),
  clusters: Sequence[str] = (),
  tuned: str | Path = "",
  workdir: str | Path = "",
  hooks: Sequence[Hook] = (),
  options: RunOptions | None = None,
  **changes: Any,
) -> Compared:
  """Run several algorithms over several seeds on one budget of examples, write the report, return the results.

  Args:
    config: as of `train`; `config.compare` has the labels, seeds and target, e.g.
      compare={"seeds": (0, 1), "algorithms": {"local": {"algorithm": {"name": "local_sgd"}}, ...}} as a change;
      with "grid": {"workers": (1, 2, 4), "algorithm.period": (1, 16)} each label is run at every point of it.
    only: labels or algorithms; clusters: names, to predict seconds for; tuned: tuned.json of a sweep.
    workdir, hooks, options, changes: as of `train`; `RunOptions(keep_models=True)` keeps the final models of all runs.

  Raises:
    ValueError, Stopped: as `train`; Failed: if every run diverged.
  """
  only, clusters = _names("only", only), _names("clusters", clusters)
  check_path("workdir", workdir)
  check_path("tuned", tuned)
  record = library_resume.recorded("compare", config, changes, workdir, options)
  with library_resume.allowed_code(record, options):
    chosen = _chosen(config, changes, record)
    if record:
      only, clusters, tuned = only or record.only, clusters or record.clusters, tuned or record.options.get("tuned", "")
    options = library_resume.with_recorded(options, record)
    comparison = Comparison.from_config(chosen, only, str(tuned), clusters)
    name = f"compare-{comparison.first.model.short_name}-{comparison.first.data.short_name}"
    options = _options("compare", name, workdir, options, chosen, only, clusters, tuned)
    comparing.compare(comparison, replace(_hooked(options, hooks), print_table=False))  # the result shows it
  return Compared(Path(options.workdir), trust_code=True)


@in_calls()
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
  from ddl.comparison import sweep as sweeping  # Optuna takes a third of a second to import

  only = _names("only", only)
  check_all(NonNegativeInt, trials, "trials")
  check_path("workdir", workdir)
  record = library_resume.recorded("sweep", config, changes, workdir, options)
  with library_resume.allowed_code(record, options):
    chosen = _chosen(config, changes, record)
    if record:
      only, trials = only or record.only, trials or record.options.get("trials", 0)
    options = library_resume.with_recorded(options, record)
    chosen.sweep.trials = trials or chosen.sweep.trials
    found = Sweep.from_config(chosen, only)
    name = f"sweep-{found.first.model.short_name}-{found.first.data.short_name}"
    options = _options("sweep", name, workdir, options, chosen, only)
    sweeping.sweep(found, options)
  return Swept(Path(options.workdir))


def _chosen(config: Given, changes: Mapping[str, Any], record: library_resume.Recorded | None) -> Config:
  """The config of a call, or that of the folder it resumes."""
  return resolve(config, record.config if record else changes)


def resolve(config: Given, changes: Mapping[str, Any]) -> Config:
  """The config with the changes. Raises ValueError for a key that does not exist, or a value of the wrong type."""
  user_code.begin()
  if config is not None and not isinstance(config, str | Path | ConfigDict):
    raise ValueError(f"config must be a config file or a config of ddl.config.base(), got {config!r}.")
  chosen: Config = load_config(Path(config)) if isinstance(config, str | Path) else copy.deepcopy(config) or base()
  named = {kind: _section(kind, value) for kind, value in changes.items()}
  names = {kind: str(each["name"]) for kind, each in named.items() if kind in REGISTRIES and "name" in each}
  chosen, _ = switched(chosen, names)
  for kind in ("compare", "sweep"):
    if not isinstance(named.get(kind, {}), Mapping):
      raise ValueError(f"{kind} must be a dictionary of keys of config.{kind}, got {named[kind]!r}.")
  if isinstance(labels := dict(named.get("compare", {})).pop("algorithms", None), Mapping):
    named["compare"] = {key: value for key, value in named["compare"].items() if key != "algorithms"}
    with chosen.compare.unlocked():
      chosen.compare.algorithms = ConfigDict(
        {
          label: {kind: _section(kind, value) for kind, value in each.items()} if isinstance(each, Mapping) else each
          for label, each in labels.items()
        }
      )
  if isinstance(grid := dict(named.get("compare", {})).get("grid"), Mapping):
    named["compare"] = {**named["compare"], "grid": tuple(grid.items())}
  if isinstance(space := dict(named.get("sweep", {})).pop("space", None), Mapping):
    named["sweep"] = {key: value for key, value in named["sweep"].items() if key != "space"}
    with chosen.sweep.unlocked():
      chosen.sweep.space = ConfigDict(
        {label: dict(each) if isinstance(each, Mapping) else each for label, each in space.items()}
      )
  chosen = renamed(with_own(chosen), named)
  apply(chosen, base(), named, "the changes")
  check_keys(chosen, with_own(base(), chosen))
  return absolute(chosen)


def _names(argument: str, value: Any) -> Sequence[str]:
  """A list of names; one string would be read letter by letter."""
  if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
    raise ValueError(f"{argument} must be a list of names, such as {argument}=['a', 'b'], got {value!r}.")
  return value


def _hooked(options: RunOptions, hooks: Any, *more: Hook) -> RunOptions:
  """Return the options with these hooks: for other processes by their addresses, from which those import them."""
  if not isinstance(hooks, Sequence) or not all(map(callable, hooks)):
    raise ValueError(f"hooks must be a list of functions of a ddl.StepInfo, got {hooks!r}.")
  if options.processes > 1 or options.max_restarts:
    hooks = [own(hook)["name"] for hook in hooks]
  return replace(options, hooks=(*options.hooks, *hooks, *more))


def _section(kind: str, value: Any) -> Any:
  """A change as a config takes it: a section's name, or a function for it, as {"name": ...}."""
  if kind not in REGISTRIES or isinstance(value, Mapping | ConfigDict):
    return value
  if isinstance(value, str):
    return {"name": value}
  if isinstance(value, Spec | Wrapper) or (callable(value) and not isinstance(value, tuple)):
    with contextlib.suppress(ValueError):  # of what is at the top level of no file
      return own(value)
  example, result = EXAMPLES.get(kind, (f'{{"name": "{DEFAULTS[kind]}"}}', "it"))
  raise ValueError(
    f"{kind} must be a name with its settings, such as {kind}={example}, or a function at the top level of a file that "
    f"returns {result}, got {getattr(value, '__qualname__', type(value).__name__)}."
  )


def _options(
  command: str, what: str, folder: str | Path, options: RunOptions | None, config: Config,
  only: Sequence[str] = (), clusters: Sequence[str] = (), tuned: str | Path = "",
) -> RunOptions:  # fmt: skip
  """With the folder, and with what `python run.py COMMAND --resume` needs to go on there."""
  options = RunOptions() if options is None else options
  if not isinstance(options, RunOptions):
    raise ValueError(f"options is {options!r}; invalid: must be a ddl.RunOptions, such as ddl.RunOptions(resume=True)")
  path = workdir(what, replace(options, workdir=str(folder or options.workdir)))
  if options.init_from:
    options = replace(options, init_from=str(Path(options.init_from).absolute()))  # a resume may be elsewhere
  default = asdict(RunOptions())
  flags = {key: value for key, value in asdict(options).items() if value != default[key] and key not in NOT_RECORDED}
  if not options.overlap:
    flags["overlap"] = "off"
  given = {
    "only": list(only),
    "cluster": cluster_file.absolute(clusters),
    "tuned": run_dir.TUNED if tuned else "",  # the folder's copy
  }
  flags |= {key: value for key, value in given.items() if value}
  record = {"command": command, "arguments": [], "options": flags, "config": recorded(config)}
  return replace(options, workdir=str(path.absolute()), command=(f"ddl.{command}",), recorded=record)
