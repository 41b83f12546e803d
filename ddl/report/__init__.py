"""Reports of comparisons, and figures of worker schedules; the modules are imported lazily."""

from typing import Any

import lazy_loader

from ddl.run.folder import EVENTS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def draw_schedule(info: Any) -> None:
  """Save a figure of the worker schedule in the run folder when a run ends; pass this function as a hook."""
  if info.last and (info.folder / EVENTS).exists():
    from ddl import hosts  # needs JAX, which reports do not
    from ddl.report import schedule

    if hosts.is_main():
      is_real = info.options.runtime != "simulator" or info.options.replay
      schedule.draw(info.folder, info.components.experiment.spec.title, "time" if is_real else "virtual time")
