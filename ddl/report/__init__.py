"""The report of a comparison, and the picture of a run's schedule; its modules are imported on first use."""

from typing import Any

import lazy_loader

from ddl.run.folder import EVENTS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def draw_schedule(info: Any) -> None:
  """Save the picture of a run's recorded visits in its folder when the run is complete; a hook."""
  if info.last and (info.folder / EVENTS).exists():
    from ddl.report import schedule

    schedule.draw(info)
