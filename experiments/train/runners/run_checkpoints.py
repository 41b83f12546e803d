"""The checkpoints of a run, or of several together: each with the layout that a bit-exact resume depends on."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ddl.perf.units import counted
from ddl.runtime.checkpoint import SECONDS, Checkpoints, Damaged
from ddl.runtime.hosts import exchange
from experiments.train.folder.run_dir import RunFolder
from experiments.train.metrics.lines import FIGURES
from experiments.train.processes import say


class DamagedMetrics(Damaged):
  """A checkpoint that can be read, of more lines of metrics than are as they were written."""


class Found(NamedTuple):
  """The newest checkpoints that can be read."""

  step: int
  figures: list[dict[str, Any]]  # of each run
  carries: list[Any]  # of each run, as they were saved
  relaid: bool  # whether they are of another layout


class RunCheckpoints:
  """The checkpoints in the folders of runs that are made in step."""

  def __init__(self, folders: Sequence[RunFolder], layout: dict[str, Any], relay: bool):
    """layout: of the run now; relay: whether it may go on from one of another layout, up to rounding."""
    self._folders, self._layout, self._relay = folders, layout, relay
    self._each: list[Checkpoints] = []

  def open(self) -> None:
    """Make the folders of the checkpoints, unless that was done."""
    self._each = self._each or [Checkpoints(folder.checkpoints) for folder in self._folders]

  def steps(self) -> list[int]:
    """Return the steps that have a checkpoint, the newest first."""
    return self._each[0].steps() if self._each else []

  def save(self, run: int, carry: Any, figures: dict[str, Any], wait: bool) -> None:
    """Save a run's carry and figures, as `Checkpoints.save` does."""
    self._each[run].save(figures["step"], carry, figures | {"layout": self._layout}, wait=wait)

  def newest(self, shapes: Callable[[int], Any]) -> Found | None:
    """Return the newest that can be read and whose metrics are intact, and remove those after it, which is said.

    shapes: of a carry as it was saved after so many steps.

    Returns:
      None where the metrics are damaged before the first checkpoint, so that the run starts over.

    Raises:
      ValueError: if none can be read, or the layout is another one.
    """
    damaged: list[int] = []
    whys: list[Damaged] = []
    for step in self.steps():
      try:
        figures = [self._figures(run, step) for run in range(len(self._folders))]
        carries = [each.carry(step, shapes(step)) for each in self._each]
      except Damaged as error:
        whys.append(error)
        damaged.append(step)
        continue
      self._go_back(whys, damaged, step)
      layouts = [each.pop("layout") for each in figures]
      return Found(step, figures, carries, self._told(step, layouts[0]))
    if not any(isinstance(why, DamagedMetrics) for why in whys):
      raise ValueError(f"{whys[0]}, and no other checkpoint either; train again in another --workdir")
    self._go_back(whys, damaged, 0)
    return None

  def _go_back(self, whys: Sequence[Damaged], damaged: Sequence[int], step: int) -> None:
    """Say and do what it takes to resume from a step before damaged checkpoints."""
    if whys:
      say(f"{whys[0]}: going on from step {step}")
    for each in self._each:
      for later in damaged:
        each.delete(later)

  def close(self) -> None:
    """Wait for what is being saved."""
    for each in self._each:
      each.close()

  def _figures(self, run: int, step: int) -> dict[str, Any]:
    folder = self._folders[run]
    figures = self._each[run].figures(step)
    if not isinstance(figures, dict) or {*FIGURES, "layout"} - {*figures, "crc"}:
      raise Damaged(f"{folder.checkpoints / str(step)} cannot be read (it lacks figures)")
    figures.setdefault("crc", None)  # of an older one, whose metrics are not checked bit for bit
    if wrong := next(filter(None, exchange(folder.damage(figures["lines"], figures["crc"]), SECONDS)), ""):
      raise DamagedMetrics(wrong)
    layout = figures["layout"]
    elsewhere = any(layout.get(key) != self._layout.get(key) for key in ("devices", "members", "sharding", "processes"))
    if layout != self._layout and not (self._relay and elsewhere):
      raise ValueError(
        f"{folder.path} was run as {_words(layout)}, now it is {_words(self._layout)}; a run resumes bit for bit only "
        "as it was: pass its --devices, --members, --virtual_grad, --step_loop, --steps_per_call, --overlap and "
        "--processes, or other --devices to go on up to rounding"
      )
    return figures

  def _told(self, step: int, layout: dict[str, Any]) -> bool:
    """Say and note that a run goes on with another layout, if so."""
    if layout == self._layout:
      return False
    say(f"this run was {_words(layout)}, and goes on as {_words(self._layout)}: not bit for bit, up to rounding")
    for each in self._folders:
      each.relaid(step, layout, self._layout | {"together": len(self._folders)})
    return True


def _words(layout: dict[str, Any]) -> str:
  processes = counted(layout["processes"], "process", "processes")
  members = f" of which {layout['members']} are a worker's" if "members" in layout else ""
  gradients, steps, longest, overlap = layout["execution"]
  execution = (
    f"gradients {gradients}, steps {steps}, up to {longest} steps a call, overlap {'on' if overlap else 'off'}"
  )
  return f"{processes}, {counted(layout['devices'], 'device')}{members}, {execution}"
