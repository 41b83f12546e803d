"""Reports of comparisons and figures of worker schedules; the modules are imported lazily."""

from typing import Any

import lazy_loader

from ddl.run.folder import EVENTS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def draw_schedule(info: Any) -> None:
  """Draw the worker schedule when a run ends and save it in the run folder; this is a user hook."""
  if info.last and (info.folder / EVENTS).exists():
    from ddl.report import schedule

    schedule.draw(info)
