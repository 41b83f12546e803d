"""Load a run, a comparison or a sweep from its folder as values, each with a short text for notebooks."""

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
SHOWN = 12  # algorithms in the text of a comparison
DAMAGED = (OSError, ValueError, KeyError, TypeError, IndexError)  # of a folder, that a text must not raise


class Named(dict[str, Value]):
  """Values by name; a KeyError lists the names."""

  def __init__(self, what: str, values: Mapping[str, Value], use: str):
    """what: the noun for a value; use: a sentence on how to use one."""
    super().__init__(values)
    self.what, self.use = what, use

  def __repr__(self) -> str:
    names = textwrap.fill(", ".join(map(repr, self)), report.tables.WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([f"{pluralize(len(self), self.what)} by name:", names, self.use])

  def __missing__(self, name: str) -> Value:
    raise KeyError(f"no {self.what} {name!r}; there are: {', '.join(self)}")


class Described:
  """Base class of what a folder holds, with a text for notebooks that a damaged folder does not turn into an error."""

  folder: Path

  def __repr__(self) -> str:
    head = f"{type(self).__name__} in {self.folder}"
    try:
      return f"{head}\n{self._text()}"
    except DAMAGED as error:
      return f"{head}\n  nothing to show: {error}"

  def _text(self) -> str:
    raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Run(Described):
  """A run that is complete, or stopped at a checkpoint. The model is that of the last checkpoint or of the end."""

  folder: Path
  trust_code: bool = False  # import user-defined files that the folder contains, or that changed since it was written

  def _text(self) -> str:
    """Describe what was trained, and the last evaluation."""
    names = {key: short_name(self.config[key]["name"]) for key in ("algorithm", "model", "data")}
    text = f"  {names['algorithm']}, {names['model']} on {names['data']}; {pluralize(self.config['workers'], 'worker')}"
    last = json.loads((self.folder / run_dir.METRICS).read_text(encoding="utf-8").splitlines()[-1])
    scores = [f"{formats.NAMES[name]} {formats.figure(name, last[name])}" for name in reader.SCORES if name in last]
    text += f", seed {self.config['seed']}\n  step {last['step']:,} of {self.config['steps']:,}: {', '.join(scores)}"
    return "\n  ".join([text, *map(run_dir.change_text, run_dir.input_changes(self.folder))])

  @cached_property
  def experiment(self) -> Experiment:
    """The experiment, with every default filled in."""
    with inputs.allowed_code(self.folder, self.trust_code, load=True):
      return Experiment.from_json(self.config)

  @cached_property
  def config(self) -> dict[str, Any]:
    """The config, without an import of user-defined files: {"algorithm": {"name": ..., ...}, "workers": ..., ...}."""
    return files.read_json(self.folder / run_dir.CONFIG)

  @cached_property
  def metrics(self) -> "pd.DataFrame":
    """A row per evaluation: step, examples, epoch, train_loss, test_loss, bytes_sent, seconds, ..."""
    import pandas as pd

    run_dir.metric_lines(self.folder / run_dir.METRICS)  # raises for a damaged one
    return pd.read_json(self.folder / run_dir.METRICS, lines=True, precise_float=True)

  @cached_property
  def _components(self) -> build_module.Components:
    with inputs.allowed_code(self.folder, self.trust_code, load=True):
      return build_module.build(self.experiment)

  @property
  def model(self) -> Model:
    """The model's functions `init`, `loss` and `metrics`."""
    return self._components.model

  @property
  def data(self) -> Data:
    """The data set."""
    return self._components.data

  @cached_property
  def _saved(self) -> checkpoints.SavedModel:
    return checkpoints.load(self.folder, self.model)

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
    """The non-trained state of the consensus model (batch statistics), on the host."""
    return self._saved.extra

  def evaluate(self, source: Source | None = None) -> dict[str, float]:
    """Return the mean "loss" and, if there is one, "accuracy" (for language also "perplexity").

    source: by default the test examples.
    """
    params, extra = jax.tree.map(jnp.asarray, (self.params, self.extra))
    tested = Evaluator(self.model, source or self.data.test)([Consensus(params, extra, None)])[0]
    return with_perplexity(tested, self.data.meta.get("task", ""))


@dataclass(frozen=True, repr=False)
class Compared(Described):
  """A complete comparison."""

  folder: Path
  trust_code: bool = False  # as of a run

  def _text(self) -> str:
    """Describe labels, seeds and target, who is best, and return the table if it is short."""
    results, comparison = self._results, self._results.comparison
    seeds = [str(seed) for seed in comparison.info["seeds"]]
    texts = [
      f"{pluralize(len(results.labels), 'label')}: {formats.listed(results.labels, SHOWN)}",
      f"{'seed' if len(seeds) == 1 else 'seeds'}: {formats.listed(seeds, SHOWN)}; "
      f"target: {formats.NAMES[comparison.metric]} {comparison.goal}",
      *report.sentences.headlines(results),
      *map(report.sentences.plain, report.sentences.caveats(results)),
      *(f"{text.partition('; ')[0].rstrip('.')}." for text in report.clusters.sentences_of(results)),
      *map(run_dir.change_text, comparison.info.get("changed_inputs", [])),
    ]
    width = report.tables.WIDTH
    wrapper = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    lines = list(map(wrapper.fill, texts))
    if len(results.labels) <= SHOWN:
      signs = [f"; {sign}: {meaning.lower()}" for sign, meaning, _ in report.sentences.marked_labels(results)]
      marks = textwrap.fill("".join([report.tables.MARKS, *signs]), width)
      lines += ["", *report.tables.text_lines(results), marks]
    return "\n".join(lines)

  @cached_property
  def info(self) -> dict[str, Any]:
    """The content of comparison.json: target, seeds, versions, an entry per algorithm."""
    return files.read_json(self.folder / run_dir.COMPARISON)

  @property
  def report(self) -> Path:
    """The page."""
    return self.folder / "report.html"

  @cached_property
  def runs(self) -> Named[list[Run]]:
    """Label -> a run per seed."""
    paths = {entry["label"]: entry["runs"] for entry in self.info["algorithms"]}
    runs = {label: [Run(self.folder / path, self.trust_code) for path in paths[label]] for label in paths}
    return Named("label", runs, "runs[label] is a list with a run per seed.")

  @cached_property
  def _results(self) -> "report.frames.Frames":
    return report.frames.build(reader.read(self.folder))

  @cached_property
  def metrics(self) -> "pd.DataFrame":
    """Every evaluation of every run; columns: docs/howto/frames.md."""
    return report.frames.metrics_frame(self._results.comparison)

  @cached_property
  def table(self) -> "pd.DataFrame":
    """A row per label, with intervals; columns: docs/howto/frames.md."""
    return self._results.table

  @cached_property
  def pairs(self) -> "pd.DataFrame":
    """A row per quantity and pair of labels; columns: docs/howto/frames.md."""
    return self._results.pairs

  @cached_property
  def figures(self) -> "Named[Figure]":
    """Name -> picture of the page, drawn when a notebook shows it or `save(path)` writes .svg, .pdf, .png or .csv."""
    figures = {figure.name: figure for figure in report.page.pictures(self.folder, self._results)}
    use = "figures[name].save(path) writes .svg, .pdf, .png or .csv."
    return Named("figure", figures, f"A notebook shows figures[name] at the end of a cell; {use}")


@dataclass(frozen=True, repr=False)
class Swept(Described):
  """A complete sweep."""

  folder: Path

  def _text(self) -> str:
    """Describe the best setting of each label with its score."""
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
    """The content of tuned.json: an entry per label."""
    return files.read_json(self.folder / run_dir.TUNED)["algorithms"]

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
    return report.frames.trials_frame(self.info)


def load(folder: str | Path, *, trust_code: bool = False) -> Run | Compared | Swept:
  """Load a run with its config, model, parameters and metrics, a comparison, or a sweep from its folder.

  Works on any number of devices, whatever the run had. Only a run's experiment, model, data and parameters import
  user-defined files.

  Args:
    folder: of the run, the comparison or the sweep.
    trust_code: import such files also from inside of the folder, or with other contents than it records.

  Raises:
    ValueError: for a folder with none of these or with unfinished work, or for an argument of another type.
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
  raise ValueError(f"{path} holds neither {run} nor {comparison} nor a sweep ({run_dir.TUNED})")


def check_path(argument: str, value: Any) -> None:
  """Raise OptionError for an object that is not a path."""
  if not isinstance(value, str | Path):
    raise OptionError(argument, f"a path, such as {argument}='runs/a'", repr(value))
