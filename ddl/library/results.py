"""Load a run, comparison or sweep from its folder as an object; notebooks show it as a short text."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp

from ddl import files, report
from ddl.api import Data, Model, Source
from ddl.config.experiment import Experiment
from ddl.engine.consensus import Consensus
from ddl.errors import OptionError
from ddl.library import resume as library_resume
from ddl.names import pluralize, short_name
from ddl.report import formats, reader
from ddl.run import build as build_module
from ddl.run import checkpoints, inputs
from ddl.run import folder as run_dir
from ddl.run.metrics import Evaluator, with_perplexity

if TYPE_CHECKING:
  import pandas as pd

  from ddl.report.figure import Figure

Value = TypeVar("Value")
SHOWN = 12  # maximum number of algorithms in the text of a comparison
DAMAGED = (OSError, ValueError, KeyError, TypeError, IndexError)  # errors that damaged folders cause; repr catches them


class Named(dict[str, Value]):
  """A dict whose KeyError lists the known names."""

  def __init__(self, what: str, values: Mapping[str, Value], use: str):
    """Create a dict. what: a noun for its keys, such as "figure"; use: a sentence on how to use a value."""
    super().__init__(values)
    self.what, self.use = what, use

  def __repr__(self) -> str:
    names = textwrap.fill(", ".join(map(repr, self)), report.tables.WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([f"{pluralize(len(self), self.what)} by name:", names, self.use])

  def __missing__(self, name: str) -> Value:
    raise KeyError(f"no {self.what} {name!r}; known: {', '.join(self)}")


class Described:
  """Base class of results that are read from a folder; their repr does not fail if the folder is damaged."""

  folder: Path

  def __repr__(self) -> str:
    head = f"{type(self).__name__} in {self.folder}"
    try:
      return f"{head}\n{self._text()}"
    except DAMAGED as error:
      return f"{head}\n  cannot be shown: {error}"

  def _text(self) -> str:
    raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Run(Described):
  """A complete or stopped run, with the model of its last step or checkpoint."""

  folder: Path
  trust_code: bool = False  # whether to import user-defined files that are in the folder or have changed since the run

  def _text(self) -> str:
    """Describe the experiment and the last evaluation."""
    names = {key: short_name(self.config[key]["name"]) for key in ("algorithm", "model", "data")}
    text = f"  {names['algorithm']}, {names['model']} on {names['data']}; {pluralize(self.config['workers'], 'worker')}"
    last = json.loads((self.folder / run_dir.METRICS).read_text(encoding="utf-8").splitlines()[-1])
    scores = [f"{formats.name(name)} {formats.figure(name, last[name])}" for name in last if reader.is_score(name)]
    text += f", seed {self.config['seed']}\n  step {last['step']:,} of {self.config['steps']:,}: {', '.join(scores)}"
    return "\n  ".join([text, *map(run_dir.change_text, run_dir.input_changes(self.folder))])

  @cached_property
  def experiment(self) -> Experiment:
    """The experiment, with all defaults filled in."""
    with inputs.allowed_code(self.folder, self.trust_code, load=True):
      return Experiment.from_json(self.config)

  @cached_property
  def config(self) -> dict[str, Any]:
    """The config as a dict, without importing user-defined files."""
    return files.read_json(self.folder / run_dir.CONFIG)

  @cached_property
  def metrics(self) -> "pd.DataFrame":
    """A table with a row per evaluation and columns step, examples, epoch, train_loss, test_loss, seconds and more."""
    import pandas as pd

    run_dir.metric_lines(self.folder / run_dir.METRICS)  # raises for a damaged file
    return pd.read_json(self.folder / run_dir.METRICS, lines=True, precise_float=True)

  @cached_property
  def _components(self) -> build_module.Components:
    with inputs.allowed_code(self.folder, self.trust_code, load=True):
      return build_module.build(self.experiment)

  @property
  def model(self) -> Model:
    """The model, with its functions `init`, `loss` and `metrics`."""
    return self._components.model

  @property
  def data(self) -> Data:
    """The data set."""
    return self._components.data

  @cached_property
  def _saved(self) -> checkpoints.SavedModel:
    return checkpoints.load(self.folder, self.model)

  @cached_property
  def best(self) -> checkpoints.SavedModel:
    """The saved model with the best test metric (step, params and extra, on the host); the run must set `keep_best`."""
    return checkpoints.load(self.folder / run_dir.BEST, self.model)

  @cached_property
  def average(self) -> checkpoints.SavedModel:
    """The saved model with averaged parameters (step, params and extra, on the host); the run must set `config.ema`."""
    return checkpoints.load(self.folder / run_dir.AVERAGE, self.model)

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
    """The non-trained state of the consensus model, such as batch-norm statistics, on the host."""
    return self._saved.extra

  def evaluate(self, model: checkpoints.SavedModel | None = None, *, source: Source | None = None) -> dict[str, float]:
    """Return a model's mean metrics: "loss", "accuracy" if defined, "perplexity" of a language model, and any others.

    Args:
      model: `best` or `average`; by default the saved model at the end of the run.
      source: the examples to evaluate; by default all test sets. Metrics of further test sets begin with a set's name.

    Raises:
      OptionError: if `model` is not a saved model.
    """
    saved = self._saved if model is None else model
    if not isinstance(saved, checkpoints.SavedModel):
      advice = "To evaluate on other examples, pass them as source."
      raise OptionError("model", "a saved model, such as run.best", type(model).__name__, advice)
    params, extra = jax.tree.map(jnp.asarray, (saved.params, saved.extra))
    more = {} if source else self.data.tests
    tested = Evaluator(self.model, source or self.data.test, more)([Consensus(params, extra, None)])[0]
    return with_perplexity(tested, self.data.meta.get("task", ""))


@dataclass(frozen=True, repr=False)
class Compared(Described):
  """A complete comparison."""

  folder: Path
  trust_code: bool = False  # see `Run`

  def _text(self) -> str:
    """Describe the algorithms, seeds, target and findings, and append the table if it is short."""
    results, comparison = self._results, self._results.comparison
    seeds = [str(seed) for seed in comparison.info["seeds"]]
    quantities = report.frames.headline_quantities(comparison)
    texts = [
      f"{pluralize(len(results.labels), 'label')}: {formats.listed(results.labels, SHOWN)}",
      f"{'seed' if len(seeds) == 1 else 'seeds'}: {formats.listed(seeds, SHOWN)}; "
      f"target: {formats.name(comparison.metric)} {comparison.goal}",
      *(f"{report.sentences.headline(results, quantity)}." for quantity in quantities),
      *map(": ".join, report.sentences.caveats(results)),
      *(f"{text.partition('; ')[0].rstrip('.')}." for text in report.clusters.sentences_of(results)),
      *map(run_dir.change_text, comparison.info.get("changed_inputs", [])),
    ]
    width = report.tables.WIDTH
    wrapper = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    lines = list(map(wrapper.fill, texts))
    if len(results.labels) <= SHOWN:
      marks = report.tables.marks(results)
      marks += [f"{sign}: {meaning.lower()}" for sign, meaning, _ in report.sentences.marked_labels(results)]
      lines += ["", *report.tables.text_lines(results)]
      if marks:
        lines.append(textwrap.fill("; ".join(marks), width))
    return "\n".join(lines)

  @cached_property
  def info(self) -> dict[str, Any]:
    """The content of comparison.json: target, seeds, versions, and an entry for each algorithm label."""
    return files.read_json(self.folder / run_dir.COMPARISON)

  @property
  def report(self) -> Path:
    """The path of the report."""
    return self.folder / "report.html"

  @cached_property
  def runs(self) -> Named[list[Run]]:
    """Algorithm label -> list of runs, one per seed."""
    paths = {entry["label"]: entry["runs"] for entry in self.info["algorithms"]}
    runs = {label: [Run(self.folder / path, self.trust_code) for path in paths[label]] for label in paths}
    return Named("label", runs, "runs[label] is a list with a run per seed.")

  @cached_property
  def _results(self) -> "report.frames.Frames":
    return report.frames.build(reader.read(self.folder))

  @cached_property
  def metrics(self) -> "pd.DataFrame":
    """A table with a row per evaluation of each run; docs/howto/results_in_python.md describes the columns."""
    return report.frames.metrics_frame(self._results.comparison)

  @cached_property
  def table(self) -> "pd.DataFrame":
    """A table with a row per algorithm label: means and confidence intervals, see docs/howto/results_in_python.md."""
    return self._results.table

  @cached_property
  def pairs(self) -> "pd.DataFrame":
    """A table with a row per quantity and pair of algorithms; docs/howto/results_in_python.md describes the columns."""
    return self._results.pairs

  @cached_property
  def figures(self) -> "Named[Figure]":
    """The report's figures by name, drawn when a notebook shows them or `save(path)` writes them."""
    figures = {figure.name: figure for figure in report.page.pictures(self.folder, self._results)}
    use = "figures[name].save(path) writes .svg, .pdf, .png or .csv."
    return Named("figure", figures, f"A notebook shows figures[name] at the end of a cell; {use}")


@dataclass(frozen=True, repr=False)
class Swept(Described):
  """A complete sweep."""

  folder: Path

  def _text(self) -> str:
    """Describe each algorithm's best settings and their score on the validation split."""
    lines = []
    for label, entry in self.info.items():
      best = {key: value for keys in entry["best"].values() for key, value in keys.items()}
      settings = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in best.items())
      validation = (entry["validation"] or {}).items()
      scores = " and ".join(f"{name} {formats.figure(f'test_{name}', value)}" for name, value in validation)
      trials = pluralize(len(entry["trials"]), "trial")
      lines.append(f"  {label}: {settings}; {scores} on the validation split, best of {trials}")
    return "\n  ".join(["\n".join(lines), *map(run_dir.change_text, run_dir.input_changes(self.folder))])

  @cached_property
  def info(self) -> dict[str, Any]:
    """The results in tuned.json, by algorithm label."""
    return files.read_json(self.folder / run_dir.TUNED)["algorithms"]

  @property
  def tuned(self) -> Path:
    """The path of tuned.json, for `compare(tuned=...)`."""
    return self.folder / run_dir.TUNED

  @property
  def best(self) -> dict[str, dict[str, Any]]:
    """The best settings by algorithm label, such as {"local, period 4": {"optimizer": {"learning_rate": 0.1}}}."""
    return {label: entry["best"] for label, entry in self.info.items()}

  @cached_property
  def trials(self) -> "pd.DataFrame":
    """A table with a row per trial: label, number, outcome, metrics on the validation split, tuned hyperparameters."""
    import pandas as pd

    rows = [
      {"label": label, "trial": number, "outcome": trial["outcome"]} | (trial["validation"] or {}) | trial["setting"]
      for label, entry in self.info.items()
      for number, trial in enumerate(entry["trials"])
    ]
    return pd.json_normalize(rows)


def load(folder: str | Path, *, trust_code: bool = False) -> Run | Compared | Swept:
  """Load a run, a comparison or a sweep from its folder; the number of devices may differ from that of the runs.

  Loading imports no user-defined files. Only a `Run` imports them, when you use its experiment, model, data or saved
  model (params, extra, step, evaluate).

  Args:
    folder: folder of the run, comparison or sweep.
    trust_code: whether to import user-defined files even if they are inside the folder or have changed since the run.

  Raises:
    ValueError: if the folder contains no run and no complete comparison or sweep, or if an argument has a wrong type.
  """
  check_path("folder", folder)
  if not isinstance(trust_code, bool):
    raise OptionError("trust_code", "True or False", repr(trust_code))
  path = files.local(folder)
  if (path / run_dir.COMPARISON).exists():
    return Compared(path, trust_code)
  if (path / run_dir.STUDY).exists() and (path / run_dir.TUNED).exists():
    return Swept(path)
  if (path / run_dir.CONFIG).exists():
    return Run(path, trust_code)
  if text := library_resume.unfinished(path):
    raise ValueError(text)
  run, comparison = f"a run ({run_dir.CONFIG})", f"a comparison ({run_dir.COMPARISON})"
  raise ValueError(f"{path} must contain {run}, {comparison} or a sweep ({run_dir.STUDY} and {run_dir.TUNED})")


def check_path(argument: str, value: Any) -> None:
  """Raise OptionError unless the value of an argument is a string or a Path."""
  if not isinstance(value, str | Path):
    raise OptionError(argument, f"a path (such as {argument}='runs/a')", repr(value))
