"""A hook that draws the schedule of an asynchronous run in its folder, when the run is complete."""

from ddl import hosts
from ddl.events import record
from ddl.run.folder import EVENTS
from ddl.run.hooks import StepInfo

PICTURE = "schedule.png"


def draw(info: StepInfo) -> None:
  """Save the picture of the recorded visits, if the run has any."""
  if not info.last or not hosts.is_main() or not (info.folder / EVENTS).exists():
    return
  from ddl.report.figures import schedule  # the report's imports take a third of a second

  is_real = info.options.runtime != "simulator" or info.options.replay
  title, events = info.components.experiment.spec.title, record.load(info.folder / EVENTS)
  schedule.lone(title, events, "time" if is_real else "virtual time").save(info.folder / PICTURE)
