"""`ddl.train`, `ddl.compare` and `ddl.sweep`, the commands as Python functions, and `ddl.build`."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ml_collections import ConfigDict

from ddl.comparison import compare as comparing
from ddl.config.base import DEFAULTS
from ddl.config.catalog import Config
from ddl.config.comparison import Comparison
from ddl.config.experiment import SETTINGS, Experiment, meanings
from ddl.config.options import RunOptions
from ddl.config.resolve import resolve
from ddl.config.sweep import Sweep
from ddl.config.user_code import custom
from ddl.errors import OptionError
from ddl.library import resume
from ddl.library.results import Compared, Run, Swept, check_path, load
from ddl.library.setup import Setup
from ddl.ranges import NonNegativeInt, check_all
from ddl.report import draw_schedule
from ddl.run import build as building
from ddl.run import train as training
from ddl.run.hooks import Hook, RunHook, StepInfo
from ddl.run.workdir import workdir as folder_of

__all__ = [  # re-exported by `ddl`
  "RunHook", "RunOptions", "StepInfo", "build", "compare", "custom", "load", "sweep", "train",
]  # fmt: skip
Source = str | Path | ConfigDict | None  # the path of a config file, or a config; None: `base()`
Section = str | Mapping[str, Any] | Callable[..., Any]  # a name, {"name": ..., key: value}, a function or an object
Function = TypeVar("Function", bound=Callable[..., Any])


SECTIONS = {  # section -> description, in the order of the config
  "algorithm": "distributed algorithm",
  "wrapper": "compression of the algorithm's messages",
  "model": "network to train",
  "data": "data set",
  "partition": "how examples are split among workers",
  "optimizer": "optimizer of each worker, with its learning_rate",
  "schedule": "learning rate as a function of the step",
  "outer_schedule": "outer learning rate as a function of the outer step, for algorithms that have one",
  "period_schedule": "local steps per round as a function of the round, for algorithms whose period may vary",
  "times": "step times of the workers in virtual time",
  "barrier": "when workers of a server algorithm wait for slower ones",
  "network": 'message times in virtual time, such as {"message_seconds": 0.01}',
}

SECTIONS_AND_SETTINGS = """\
Sections and settings, with their defaults if `config` does not set them. Each section from algorithm to barrier is a
name, {"name": ..., key: value} or a custom function; `python run.py list` prints algorithms, models and data sets.
`data` may also be arrays, (x, y) or (x, y, x_test, y_test), a data set of Hugging Face or a `ddl.Data`. `optimizer` may
also be an `optax.GradientTransformation`."""


def _list_settings(function: Function) -> Function:
  """Replace `**changes` in a function's signature by the sections and settings, and list these in its docstring."""
  signature, text = inspect.signature(function), inspect.cleandoc(function.__doc__ or "")
  explicit = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
  kind = inspect.Parameter.KEYWORD_ONLY
  sections = [inspect.Parameter(name, kind, default=entry, annotation=Section) for name, entry in DEFAULTS.items()]
  sections.append(inspect.Parameter("network", kind, default={}, annotation=Mapping[str, float]))
  settings = [inspect.Parameter(key, kind, default=value, annotation=type(value)) for key, value in SETTINGS.items()]
  setattr(function, "__signature__", signature.replace(parameters=[*explicit, *sections, *settings]))  # noqa: B010
  defaults = {parameter.name: parameter.default for parameter in (*sections, *settings)}
  meaning_of = SECTIONS | meanings(Experiment)
  rows = "\n".join(f"  {key}: {meaning} ({defaults[key]!r})" for key, meaning in meaning_of.items())
  function.__doc__ = f"{text}\n\n{SECTIONS_AND_SETTINGS}\n{rows}"
  return function


@_list_settings
def train(
  config: Source = None,
  *,
  workdir: str | Path = "",
  hooks: Sequence[Hook] = (),
  options: RunOptions | None = None,
  **changes: Any,
) -> Run:
  """Train one algorithm and return its run, e.g. `ddl.train(algorithm={"name": "easgd", "period": 10}, steps=400)`.

  Args:
    config: path of a config file, a config from `ddl.config.base()`, or None for the defaults below.
    workdir: new folder for the run; default: runs/train-<algorithm>-<time>.
    hooks: functions that take a `ddl.StepInfo`, called in every process after each evaluation and at the end; for
      Weights & Biases or MLflow, `ddl.trackers.wandb` or `ddl.trackers.mlflow`.
    options: execution options; `RunOptions(resume=True)` resumes the run in `workdir`, with the recorded config unless
      you pass a config, section or setting.
    algorithm, ..., seed: sections and settings that override the config, see the list below.

  Raises:
    ValueError: for an invalid config, options or folder; its subclass `Diverged` if a loss, metric or parameter is not
      finite.
    Stopped: after SIGTERM or Ctrl-C; the run has been saved and can be resumed, except with runtime="threads".
  """
  with _prepared("train", config, changes, workdir, options) as (resolved, options, _):
    experiment = Experiment.from_config(resolved)
    options = _final(f"train-{experiment.label}", "train", resolved, options)
    training.train(experiment, _hooked(options, hooks, draw_schedule))
  return Run(Path(options.workdir), trust_code=True)  # its code has already run


@_list_settings
def compare(
  config: Source = None,
  *,
  algorithms: Mapping[str, Any] | Sequence[str] | None = None,
  seeds: int | Sequence[int] | None = None,
  target: float | None = None,
  metric: str | None = None,
  mode: str | None = None,
  stop_at_target: bool | None = None,
  grid: Mapping[str, Sequence[Any]] | None = None,
  only: Sequence[str] = (),
  clusters: Sequence[str] = (),
  tuned: str | Path = "",
  workdir: str | Path = "",
  hooks: Sequence[Hook] = (),
  options: RunOptions | None = None,
  **changes: Any,
) -> Compared:
  """Compare algorithms over several seeds with equal budgets of examples, write the report and return the results.

  Args:
    config: see `train`; its section `compare` sets the defaults of the arguments from `algorithms` to `grid`.
    algorithms: a list of names; or label -> algorithm, as a name, {"name": ..., key: value} or a function; or label ->
      changed sections, as in {"slow": {"algorithm": "easgd", "optimizer": {"learning_rate": 0.05}}}.
    seeds: seeds to train each label with; a number n means the seeds 0 to n - 1.
    target: value of the test metric that runs should reach: a minimum accuracy, or a maximum loss or perplexity.
    metric: "accuracy", "loss", "perplexity" or another metric of the model. To select a further test set, put its name
      in front, as in "noisy_accuracy". Default: accuracy if the model defines it, else loss.
    mode: "max" or "min": whether higher or lower values of a user-defined metric are better.
    stop_at_target: whether to end a run at the first evaluation that meets the target; then the costs to the target are
      compared, but not the final metrics.
    grid: setting -> values; each label is trained with all combinations of these values, as in
      {"workers": (1, 2, 4), "algorithm.period": (1, 16)}.
    only: labels or algorithms to train; default: all.
    clusters: names or files of clusters for which to predict the training time of each label.
    tuned: path of the tuned.json of a sweep with the same config, to train each label with its best settings at its
      grid point.
    workdir, hooks, options: see `train`; `RunOptions(keep_models=True)` saves the final models of all runs.
    algorithm, ..., seed: sections and settings that override the config for all labels, see the list below.

  Raises:
    ValueError, Stopped: as `train` does, but a run that diverges does not stop the others.
    Failed: if every run diverges.
  """
  only, clusters = _names("only", only), _names("clusters", clusters)
  check_path("tuned", tuned)
  section = {
    "algorithms": algorithms, "seeds": seeds, "target": target, "metric": metric, "mode": mode, "grid": grid,
    "stop_at_target": stop_at_target,
  }  # fmt: skip
  changes = _with_section(changes, "compare", section)
  with _prepared("compare", config, changes, workdir, options) as (resolved, options, recorded):
    only, clusters = only or recorded.get("only", ()), clusters or recorded.get("cluster", ())
    tuned = tuned or recorded.get("tuned", "")
    comparison = Comparison.from_config(resolved, only, str(tuned), clusters)
    name = f"compare-{comparison.first.model.short_name}-{comparison.first.data.short_name}"
    options = _final(name, "compare", resolved, options, only=only, cluster=clusters, tuned=tuned)
    comparing.compare(comparison, replace(_hooked(options, hooks), print_table=False))  # the result has the table
  return Compared(Path(options.workdir), trust_code=True)


@_list_settings
def sweep(
  config: Source = None,
  *,
  algorithms: Mapping[str, Any] | Sequence[str] | None = None,
  space: Mapping[str, Any] | None = None,
  grid: Mapping[str, Sequence[Any]] | None = None,
  only: Sequence[str] = (),
  trials: int = 0,
  seeds: int | Sequence[int] | None = None,
  metric: str | None = None,
  mode: str | None = None,
  workdir: str | Path = "",
  options: RunOptions | None = None,
  **changes: Any,
) -> Swept:
  """Tune each algorithm at each grid point with the same number of trials, and return the best settings.

  Trials are compared on a validation split.

  Args:
    config: see `train`; its section `sweep` sets the bounds of the learning rate, the sampler and the seeds.
    algorithms: see `compare`.
    space: label -> hyperparameters to tune besides the learning rate, as bounds (low, high) or a list of choices, such
      as {"local": {"period": (2, 16), "optimizer": {"momentum": [0.0, 0.9]}}}.
    grid: see `compare`; each label is tuned separately at each combination of these values.
    only: labels or algorithms to tune; default: all.
    trials: trials per label and grid point; 0: the value of config.sweep.trials.
    seeds: seeds over which the score of a trial is averaged; a number n means the seeds 0 to n - 1.
    metric, mode: see `compare`; the metric on the validation split by which trials are compared.
    workdir, options: see `train`.
    algorithm, ..., seed: sections and settings that override the config for all labels, see the list below.

  Raises:
    ValueError, Stopped: as `train` does; ValueError also if no trial of a label completes.
  """
  from ddl.comparison import sweep as sweeping  # importing Optuna takes a third of a second

  only = _names("only", only)
  check_all(NonNegativeInt, trials, "trials")
  changes = _with_section(changes, "compare", {"algorithms": algorithms, "grid": grid, "metric": metric, "mode": mode})
  changes = _with_section(changes, "sweep", {"space": space, "seeds": seeds})
  with _prepared("sweep", config, changes, workdir, options) as (resolved, options, recorded):
    only = only or recorded.get("only", ())
    resolved.sweep.trials = trials or resolved.sweep.trials
    resolved_sweep = Sweep.from_config(resolved, only)
    name = f"sweep-{resolved_sweep.first.model.short_name}-{resolved_sweep.first.data.short_name}"
    options = _final(name, "sweep", resolved, options, only=only)
    sweeping.sweep(resolved_sweep, options)
  return Swept(Path(options.workdir))


@_list_settings
def build(config: Source = None, **changes: Any) -> Setup:
  """Return what a custom training loop needs to repeat the run of `ddl.train` with these settings.

  Args:
    config: see `train`.
    algorithm, ..., seed: sections and settings that override the config, see the list below.

  Raises:
    ValueError: for an invalid config.
  """
  return Setup(building.build(Experiment.from_config(resolve(config, changes))))


@contextlib.contextmanager
def _prepared(
  command: str, config: Source, changes: Mapping[str, Any], workdir: str | Path, options: RunOptions | None
) -> Iterator[tuple[Config, RunOptions, Mapping[str, Any]]]:
  """Yield the (config, options, recorded options) of a call of `ddl.train`, `compare` or `sweep`.

  A resume with neither `config` nor `changes` uses the recorded config and options; otherwise the recorded options
  are {}.
  """
  check_path("workdir", workdir)
  options = RunOptions() if options is None else options
  if not isinstance(options, RunOptions):
    raise OptionError("options", "a ddl.RunOptions (such as ddl.RunOptions(resume=True))", repr(options))
  options = replace(options, workdir=str(workdir or options.workdir))
  recorded = resume.read(command, options) if options.resume and config is None and not changes else None
  with resume.allowed_code(recorded, options):
    if recorded:
      yield resume.config_of(recorded), resume.with_recorded(options, recorded), recorded.options
    else:
      yield resolve(config, changes), options, {}


def _final(name: str, command: str, config: Config, options: RunOptions, **more: Any) -> RunOptions:
  """Return the options after setting their folder, command, and the record with which the call can be resumed."""
  path = folder_of(name, options).absolute()
  recorded = resume.record(command, config, options, **more)
  return replace(options, workdir=str(path), command=(f"ddl.{command}",), recorded=recorded)


def _with_section(changes: dict[str, Any], name: str, values: Mapping[str, Any]) -> dict[str, Any]:
  """Return the changes of a config after adding the values that are not None to the section `name`."""
  values = {key: value for key, value in values.items() if value is not None}
  section = changes.get(name, {})
  return changes | {name: {**section, **values}} if values and isinstance(section, Mapping) else changes


def _names(argument: str, value: Any) -> Sequence[str]:
  """Return the value if it is a list of names. Raises OptionError otherwise, also for a single string."""
  if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
    raise OptionError(argument, f"a list of names (such as {argument}=['a', 'b'])", repr(value))
  return value


def _hooked(options: RunOptions, hooks: Any, *more: Hook) -> RunOptions:
  """Return the options with `hooks` and `more` added.

  If other processes run the hooks, `hooks` (not `more`) are replaced by their addresses, FILE.py:NAME or MODULE:NAME.
  """
  if not isinstance(hooks, Sequence) or not all(map(callable, hooks)):
    raise OptionError("hooks", "a list of functions that take a ddl.StepInfo", repr(hooks))
  if options.processes > 1 or options.max_restarts:
    hooks = [custom(hook)["name"] for hook in hooks]
  return replace(options, hooks=(*options.hooks, *hooks, *more))
