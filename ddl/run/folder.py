"""Read and write the folder of a run: config, versions and metrics. Only the main process writes."""

import functools
import json
import platform
import re
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
EXPERIMENT = "experiment.json"  # the config and options with which `--resume` continues
INPUTS = "inputs.json"  # fingerprints of the data and of user-defined files
FAILED = "failed.json"  # why a run of a comparison diverged
MODEL = "model.msgpack"  # the consensus model at the last checkpoint or at the end of the run
AVERAGE = "ema.msgpack"  # the consensus model with averaged parameters, see `ddl.run.average`
BEST = "best.msgpack"  # the consensus model with the best test metric
EVENTS = "events.npz"  # the schedule of visits of an asynchronous algorithm
PRESENCE = "presence.json"  # the workers present at each step of an elastic run
TUNED = "tuned.json"  # the best settings of a sweep
STUDY = "study.journal"  # the trials of a sweep
COMPARISON = "comparison.json"  # the data of a comparison, from which its report is made
LOCKSTEP = "lockstep.npz"  # when each worker of a collective algorithm computes and waits in virtual time
PACKAGES = re.compile("jax(lib|-cuda.*|-rocm.*)?|libtpu|flax|optax|numpy|orbax-checkpoint")  # can affect results


@dataclass
class RunFolder:
  """The files of one run; `create` creates the folder."""

  path: Path
  writes: bool = True  # False in all but the main process
  recorded: Mapping[str, Any] | None = None  # the content of EXPERIMENT; None: do not write this file
  inputs: Mapping[str, str] = field(default_factory=dict)  # fingerprints, see `ddl.run.inputs`

  @property
  def checkpoints(self) -> Path:
    """The folder of the checkpoints."""
    return self.path / "checkpoints"

  @property
  def begun(self) -> bool:
    """Whether the folder contains a run."""
    return (self.path / CONFIG).exists()

  def has_begun(self) -> bool:
    """Return whether a killed run can be resumed; if not, remove its files, so that a new run can start."""
    if not self.begun:
      for name in (ABOUT, EXPERIMENT, INPUTS, METRICS):
        (self.path / name).unlink(missing_ok=True)
    return self.begun

  def check_new(self) -> None:
    """Raise ValueError if the folder already contains a run."""
    if self.begun:
      raise ValueError(f"{self.path} already contains a run. Pass resume to continue it, or use another workdir.")

  def check_unused(self) -> None:
    """Raise ValueError if the folder already contains a run, a comparison or a sweep."""
    self.check_new()
    for file, what in ((COMPARISON, "comparison"), (STUDY, "sweep")):
      if (self.path / file).exists():
        raise ValueError(f"{self.path} already contains a {what}. Pass resume to continue it, or use another workdir.")
    if (self.path / ABOUT).exists():
      raise ValueError(
        f"{self.path} contains files of another command, or of a run that did not start (see its {ABOUT}). Use "
        "another workdir."
      )

  def reopen(self, experiment: "Experiment") -> None:
    """Raise ValueError unless the folder contains a run of this experiment."""
    if not self.begun:
      raise ValueError(f"{self.path} contains no run to resume. Omit resume to start one.")
    if differ := differences(files.read_json(self.path / CONFIG), experiment.to_json()):
      reason = f"{self.path} contains a run with a different config"
      advice = "Pass the recorded config to resume it"
      if any(line.startswith("steps:") for line in differ):
        advice += "; a run cannot be extended, because its schedules depend on config.steps"
      raise ValueError(f"{reason} ({'; '.join(differ[:5])}). {advice}.")

  def create(self, experiment: "Experiment", about: dict[str, Any]) -> None:
    """Create the folder of a new run. Raises ValueError if it already contains a run."""
    if self.writes:
      self.check_new()
      record(self.path, about, self.recorded, self.inputs)
      (self.path / METRICS).write_text("")
      write_json(self.path / CONFIG, experiment.to_json())  # last: `begun` checks for this file

  def resumed(self, step: int) -> None:
    """Record changed inputs of a run that resumes after `step`."""
    if self.writes:
      record_inputs(self.path, self.inputs, {"step": step})

  def resharded(self, step: int, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Record in ABOUT that the run resumes after `step` with a different layout, so its results are not bit-exact.

    before, now: the two layouts: devices, processes and how the steps are executed.
    """
    if self.writes:
      about = files.read_json(self.path / ABOUT)
      changes = [*about.get("resharded", []), {"step": step, "before": before, "bit_exact": False}]
      write_json(self.path / ABOUT, about | {"layout": now, "resharded": changes})

  def truncate(self, lines: int) -> None:
    """Truncate the metrics to the first `lines` lines, those that the checkpoint covers."""
    if self.writes:
      temporary = self.path / f"{METRICS}.tmp"
      temporary.write_bytes(b"".join(_lines(self.path / METRICS)[:lines]))
      temporary.replace(self.path / METRICS)

  def damage(self, lines: int, crc: int | None) -> str:
    """Describe damage to the first `lines` lines of METRICS; "" if intact. crc: their CRC-32; None: do not check it."""
    file = self.path / METRICS
    if not self.writes or not lines:  # only the main process checks
      return ""
    try:
      content = _lines(file)[:lines]
      metric_lines(file, content)
    except (OSError, ValueError) as error:
      return str(error)
    if len(content) < lines:
      return f"{file} has only {len(content)} of {lines} lines"
    if crc is not None and zlib.crc32(b"".join(content)) != crc:
      return f"{file} was changed: its first {lines} lines do not match their checksum"
    return ""

  def line(self, figures: dict[str, Any]) -> None:
    """Append a line of metrics."""
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
  """Format a line of METRICS."""
  return json.dumps(figures) + "\n"


def metric_lines(file: Path, lines: Sequence[bytes] | None = None) -> list[dict[str, Any]]:
  """Parse and check a METRICS file. lines: its content; None: read it.

  Raises ValueError if a line is not a JSON object of numbers, or the steps do not increase.
  """
  rows: list[dict[str, Any]] = []
  for number, text in enumerate(file.read_bytes().splitlines() if lines is None else lines, 1):
    try:
      row = json.loads(text)
      wrong = {key for key, value in row.items() if value is not None and type(value) not in (int, float)}
    except (ValueError, AttributeError, RecursionError) as error:
      reason = f"{type(error).__name__}: {error}"
      raise ValueError(f"{file}: line {number} is not a JSON object of numbers: {reason}") from error
    if wrong or row.get("step") is None:
      reason = ", ".join(sorted(wrong)) or "no step"
      raise ValueError(f"{file}: line {number} is not a JSON object of numbers: {reason}")
    if rows and not row["step"] > rows[-1]["step"]:
      raise ValueError(f"{file}: line {number} has step {row['step']} after step {rows[-1]['step']}")
    rows.append(row)
  return rows


def _lines(file: Path) -> list[bytes]:
  """Return the complete lines of a file with their line ends; [] if the file is missing."""
  if not file.exists():
    return []
  return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def read_result(folder: Path) -> dict[str, float]:
  """Return the last line of metrics of a complete run. Raises ValueError if the file is damaged."""
  result = files.read_json(folder / RESULT)
  if "test_loss" not in result or not all(type(value) in (int, float) for value in result.values()):
    raise ValueError(f"{folder / RESULT} is damaged (it contains no valid metrics). Train again in another workdir.")
  return result


def record(
  path: Path, about: Mapping[str, Any], recorded: Mapping[str, Any] | None, inputs: Mapping[str, str],
  done: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
  """Create a folder with ABOUT, EXPERIMENT (if `recorded` is not empty) and INPUTS. done: see `record_inputs`."""
  path.mkdir(parents=True, exist_ok=True)
  write_json(path / ABOUT, about)
  if recorded:
    write_json(path / EXPERIMENT, recorded)
  record_inputs(path, inputs, done or {})


def record_inputs(folder: Path, inputs: Mapping[str, str], done: Mapping[str, Any]) -> None:
  """Write the fingerprints of the inputs to INPUTS, and append their changes since INPUTS was last written.

  done: the progress before the changes, {"step": n} or {"runs": {run: step}}.
  """
  before = _read_inputs(folder)
  known = before.get("inputs", {})
  changed = [name for name in inputs if known.get(name, inputs[name]) != inputs[name]]
  changes = [*before.get("changes", []), *([{"changed": changed, **done}] if changed else [])]
  content = {"inputs": {**known, **inputs}} | ({"changes": changes} if changes else {})
  if inputs and content != before:
    write_json(folder / INPUTS, content)


def recorded_inputs(folder: Path) -> dict[str, str]:
  """Return a folder's recorded fingerprints; {} if it has no INPUTS. Raises ValueError if INPUTS is damaged."""
  return _read_inputs(folder).get("inputs", {})


def input_changes(folder: Path) -> list[dict[str, Any]]:
  """Return the recorded changes of inputs: the changed names, and the progress before (see `record_inputs`)."""
  return _read_inputs(folder).get("changes", [])


def change_text(change: Mapping[str, Any]) -> str:
  """Describe a change of inputs, an item of `input_changes`, in one or two sentences."""
  what = ", ".join(map(str, change["changed"]))
  if "step" in change:
    return f"Changed contents since step {change['step']}: {what}."
  runs = [run if step is None else f"{run} up to step {step}" for run, step in dict(change.get("runs", {})).items()]
  return f"Changed contents since earlier runs: {what}. Earlier runs: {', '.join(runs) or 'none'}."


def _read_inputs(folder: Path) -> dict[str, Any]:
  if not (folder / INPUTS).exists():
    return {}
  content = files.read_json(folder / INPUTS, "; remove it to resume without checking for changed inputs")
  inputs, changes = content.get("inputs"), content.get("changes", [])
  good = isinstance(inputs, dict) and isinstance(changes, list)
  if not good or not all(isinstance(change, dict) and isinstance(change.get("changed"), list) for change in changes):
    raise ValueError(
      f"{folder / INPUTS} is damaged (its inputs or changes are missing or malformed). Remove it to resume without "
      "checking for changed inputs."
    )
  return content


def about(command: Sequence[str], **more: Any) -> dict[str, Any]:
  """Return the command, git commit and package versions, to document and reproduce a run."""
  return {"command": shlex.join(command), "git": git_commit(), "versions": package_versions(), **more}


@functools.cache
def package_versions() -> dict[str, str]:
  """Return the versions of Python, ddl, and the packages that affect results, including JAX's accelerator plugins."""
  installed = {(package.name or "").lower().replace("_", "-"): package.version for package in metadata.distributions()}
  names = sorted(filter(PACKAGES.fullmatch, installed))
  return {"python": platform.python_version(), "ddl": __version__} | {name: installed[name] for name in names}


def git_commit() -> str | None:
  """Return the git commit of this code, followed by "+" if there are uncommitted changes; None outside a repository."""
  command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
  try:
    return subprocess.check_output(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True).strip()
  except (OSError, subprocess.CalledProcessError):
    return None


def write_whole(file: Path, text: str) -> None:
  """Write a file atomically."""
  temporary = file.with_name(file.name + ".tmp")
  temporary.write_text(text)
  temporary.replace(file)


def write_json(file: Path, content: Any) -> None:
  """Write an indented JSON file atomically."""
  write_whole(file, json.dumps(content, indent=2) + "\n")


def differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
  """Return a text "key: value recorded, value now" for each key in which two nested dicts differ."""
  a, b = flat(recorded), flat(current)
  return [f"{k}: {a.get(k)} recorded, {b.get(k)} now" for k in sorted({*a, *b}) if a.get(k) != b.get(k)]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
  """Flatten nested dicts to one dict whose keys are joined with dots."""
  if not isinstance(tree, dict):
    return {prefix: tree}
  return {key: v for k, part in tree.items() for key, v in flat(part, f"{prefix}.{k}" if prefix else k).items()}
