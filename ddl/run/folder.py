"""A run's folder: config, versions and metrics; only the main process writes it."""

import contextlib
import json
import platform
import shlex
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddl import __version__, files

if TYPE_CHECKING:
  from ddl.config.experiment import Experiment

METRICS, CONFIG, ABOUT, RESULT = "metrics.jsonl", "config.json", "about.json", "result.json"
EXPERIMENT = "experiment.json"  # what `--resume` needs beside the runs
INPUTS = "inputs.json"  # fingerprints of the data and of user-defined files
FAILED = "failed.json"  # why a run of a comparison diverged
EVENTS = "events.npz"  # who was served when, for an asynchronous algorithm
PRESENCE = "presence.json"  # which workers were there from which step on, where they come and go
TUNED = "tuned.json"  # what a sweep found
STUDY = "study.journal"  # a sweep's trials
COMPARISON = "comparison.json"  # what a report is made of
LOCKSTEP = "lockstep.npz"  # who waited for whom, for a synchronous one beside it


@dataclass
class RunFolder:
  """Files of one run; `create` creates the folder."""

  path: Path
  writes: bool = True  # False in all but the main process
  recorded: Mapping[str, Any] | None = None  # the content of EXPERIMENT, unless the folder is part of a larger one
  inputs: Mapping[str, str] = field(default_factory=dict)  # fingerprints, see `ddl.run.inputs`

  @property
  def checkpoints(self) -> Path:
    """The folder of its checkpoints."""
    return self.path / "checkpoints"

  @property
  def begun(self) -> bool:
    """Whether the folder holds a run."""
    return (self.path / CONFIG).exists()

  def has_begun(self) -> bool:
    """Return whether a run that was killed can be resumed; if not, remove its files, so that a new one can start."""
    if not self.begun:
      for name in (ABOUT, EXPERIMENT, INPUTS, METRICS):
        (self.path / name).unlink(missing_ok=True)
    return self.begun

  def check_new(self) -> None:
    """Raise ValueError if the folder holds a run already."""
    if self.begun:
      raise ValueError(f"{self.path} holds a run already; resume continues it, another workdir starts a new one")

  def check_unused(self) -> None:
    """Raise ValueError if the folder holds a run, a comparison or a sweep already."""
    self.check_new()
    for file, what in ((COMPARISON, "comparison"), (STUDY, "sweep")):
      if (self.path / file).exists():
        raise ValueError(f"{self.path} holds a {what} already; resume continues it, another workdir starts a new one")
    if (self.path / ABOUT).exists():
      where = f"{self.path} holds the work of another command, see its {ABOUT}"
      raise ValueError(f"{where}; another workdir starts a new one")

  def reopen(self, experiment: "Experiment") -> None:
    """Raise ValueError unless the folder holds a run of this experiment."""
    if not self.begun:
      raise ValueError(f"{self.path} holds no run to resume; without resume a new one starts there")
    if differ := differences(files.read_json(self.path / CONFIG), experiment.to_json()):
      where = f"{self.path} holds a run of another config"
      raise ValueError(f"{where} ({'; '.join(differ[:5])}); give its own to resume it")

  def create(self, experiment: "Experiment", about: dict[str, Any]) -> None:
    """Start a run. Raises ValueError if the folder holds one already."""
    if self.writes:
      self.check_new()
      record(self.path, about, self.recorded, self.inputs)
      (self.path / METRICS).write_text("")
      write_json(self.path / CONFIG, experiment.to_json())  # last: with it the folder holds a run

  def resumed(self, step: int) -> None:
    """Record the inputs that the run resumes with after a step, where they changed."""
    if self.writes:
      record_inputs(self.path, self.inputs, {"step": step})

  def relaid(self, step: int, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Record in ABOUT that the run resumes with another layout, so that it is not one run bit for bit."""
    if self.writes:
      about = files.read_json(self.path / ABOUT)
      changes = [*about.get("relaid", []), {"step": step, "before": before, "bit_exact": False}]
      write_json(self.path / ABOUT, about | {"layout": now, "relaid": changes})

  def truncate(self, lines: int) -> None:
    """Keep the first lines of the metrics, which the checkpoint covers."""
    if self.writes:
      temporary = self.path / f"{METRICS}.tmp"
      temporary.write_bytes(b"".join(_lines(self.path / METRICS)[:lines]))
      temporary.replace(self.path / METRICS)

  def damage(self, lines: int, crc: int | None) -> str:
    """Return what is wrong with the first lines of the metrics, "" for nothing; crc: of them as they were written."""
    file = self.path / METRICS
    if not self.writes or not lines:  # the main process reports it, or the checkpoint covers no lines
      return ""
    try:
      content = _lines(file)[:lines]
      metric_lines(file, content)
    except (OSError, ValueError) as error:
      return str(error)
    if len(content) < lines:
      return f"{file} has {len(content)} lines of {lines}"
    if crc is not None and zlib.crc32(b"".join(content)) != crc:
      return f"{file} has other figures in its first {lines} lines than were written"
    return ""

  def line(self, figures: dict[str, Any]) -> None:
    """Add a line of metrics."""
    if self.writes:
      with (self.path / METRICS).open("a") as file:
        file.write(text_of(figures))

  def finish(self, result: dict[str, Any]) -> None:
    """Mark the run as complete."""
    if self.writes:
      write_json(self.path / RESULT, result)

  def fail(self, why: str) -> None:
    """Mark the run as diverged, so that a resume does not train it again."""
    if self.writes:
      write_json(self.path / FAILED, {"diverged": why})


def text_of(figures: Mapping[str, Any]) -> str:
  """Return a line of METRICS."""
  return json.dumps(figures) + "\n"


def metric_lines(file: Path, lines: Sequence[bytes] | None = None) -> list[dict[str, Any]]:
  """Return the lines of a METRICS file. lines: its content, where that is at hand.

  Raises ValueError for a line that is not an object of numbers, or whose step is not above the one before.
  """
  rows: list[dict[str, Any]] = []
  for number, text in enumerate(file.read_bytes().splitlines() if lines is None else lines, 1):
    try:
      row = json.loads(text)
      wrong = {key for key, value in row.items() if value is not None and type(value) not in (int, float)}
    except (ValueError, AttributeError, RecursionError) as error:
      raise ValueError(f"{file}: line {number} is not an object of numbers: {type(error).__name__}: {error}") from error
    if wrong or row.get("step") is None:
      raise ValueError(f"{file}: line {number} is not an object of numbers: {', '.join(sorted(wrong)) or 'no step'}")
    if rows and not row["step"] > rows[-1]["step"]:
      raise ValueError(f"{file}: line {number} has step {row['step']} after step {rows[-1]['step']}")
    rows.append(row)
  return rows


def _lines(file: Path) -> list[bytes]:
  """Return the lines of a file with their ends, but not an unfinished last one; [] where it is missing."""
  if not file.exists():
    return []
  return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def read_result(folder: Path) -> dict[str, float]:
  """Return the last line of metrics of a complete run. Raises ValueError, one line, if its file is damaged."""
  result = files.read_json(folder / RESULT)
  if "test_loss" not in result or not all(type(value) in (int, float) for value in result.values()):
    raise ValueError(f"{folder / RESULT} is damaged (it holds no figures); train again in another workdir")
  return result


def record(
  path: Path, about: Mapping[str, Any], recorded: Mapping[str, Any] | None, inputs: Mapping[str, str],
  done: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
  """Start a folder; recorded: the content of EXPERIMENT if it is a command's own; done: see `record_inputs`."""
  path.mkdir(parents=True, exist_ok=True)
  write_json(path / ABOUT, about)
  if recorded:
    write_json(path / EXPERIMENT, recorded)
  record_inputs(path, inputs, done or {})


def record_inputs(folder: Path, inputs: Mapping[str, str], done: Mapping[str, Any]) -> None:
  """Write INPUTS, and which of them changed. done: with the former ones, {"step": n} or {"runs": {run: step}}."""
  before = _read_inputs(folder)
  known = before.get("inputs", {})
  changed = [name for name in inputs if known.get(name, inputs[name]) != inputs[name]]
  changes = [*before.get("changes", []), *([{"changed": changed, **done}] if changed else [])]
  content = {"inputs": {**known, **inputs}} | ({"changes": changes} if changes else {})
  if inputs and content != before:
    write_json(folder / INPUTS, content)


def recorded_inputs(folder: Path) -> dict[str, str]:
  """Return the fingerprints that a folder records, {} for an older one. ValueError for a damaged file."""
  return _read_inputs(folder).get("inputs", {})


def input_changes(folder: Path) -> list[dict[str, Any]]:
  """Return the changes of inputs that were allowed, each with what had been done before it."""
  return _read_inputs(folder).get("changes", [])


def change_text(change: Mapping[str, Any]) -> str:
  """Return a change of inputs as a sentence."""
  what = ", ".join(map(str, change["changed"]))
  if "step" in change:
    return f"Other contents since step {change['step']}: {what}."
  runs = [run if step is None else f"{run} up to step {step}" for run, step in dict(change.get("runs", {})).items()]
  return f"Other contents than in earlier runs: {what}. Those runs: {', '.join(runs) or 'none'}."


def _read_inputs(folder: Path) -> dict[str, Any]:
  if not (folder / INPUTS).exists():
    return {}
  content = files.read_json(folder / INPUTS, "; remove it to resume without its check")
  inputs, changes = content.get("inputs"), content.get("changes", [])
  good = isinstance(inputs, dict) and isinstance(changes, list)
  if not good or not all(isinstance(each, dict) and isinstance(each.get("changed"), list) for each in changes):
    raise ValueError(f"{folder / INPUTS} is damaged (it holds no inputs); remove it to resume without its check")
  return content


def about(command: Sequence[str], **more: Any) -> dict[str, Any]:
  """Return versions, commit and command, which a reader needs to judge or repeat a run."""
  versions = {"python": platform.python_version(), "ddl": __version__}
  for name in ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint"):
    with contextlib.suppress(metadata.PackageNotFoundError):
      versions[name] = metadata.version(name)
  return {"command": shlex.join(command), "git": git_commit(), "versions": versions, **more}


def git_commit() -> str | None:
  """Return the commit of this code, with a + if files differ from it; None outside of a repository."""
  command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
  try:
    return subprocess.check_output(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True).strip()
  except (OSError, subprocess.CalledProcessError):
    return None


def write_whole(file: Path, text: str) -> None:
  """Write a file so that a crash leaves the old one or the new one."""
  temporary = file.with_name(file.name + ".tmp")
  temporary.write_text(text)
  temporary.replace(file)


def write_json(file: Path, content: Any) -> None:
  """Write an indented JSON file so that a crash leaves the old one or the new one."""
  write_whole(file, json.dumps(content, indent=2) + "\n")


def differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
  """Return the differences of two trees, as "key: value there, value here"."""
  a, b = flat(recorded), flat(current)
  return [f"{k}: {a.get(k)} there, {b.get(k)} here" for k in sorted({*a, *b}) if a.get(k) != b.get(k)]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
  """Return the leaves of nested dicts by their keys, joined with dots."""
  if not isinstance(tree, dict):
    return {prefix: tree}
  return {key: v for k, part in tree.items() for key, v in flat(part, f"{prefix}.{k}" if prefix else k).items()}
