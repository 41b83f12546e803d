"""Schedules of asynchronous runs as files: each run writes its own, which `train --replay=FILE` follows.

A run with a lock on threads gives the same bits when it is replayed with a device per worker and unbatched gradients:
--devices=WORKERS --virtual_grad=unroll.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ddl import files
from ddl.events import presence, record
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.files import read_json
from ddl.run.build import Components
from ddl.run.folder import ABOUT, CONFIG, EVENTS, PRESENCE, flat

SAME = ("workers", "algorithm.name", "algorithm.period", "barrier.name")  # as the recorded run's


def keep(folder: Path, events: Events) -> None:
  """Write the schedule into a run's folder."""
  folder.mkdir(parents=True, exist_ok=True)
  record.save(folder / EVENTS, events)


def schedule(file: str, folder: Path | None, components: Components) -> Events | Presence | None:
  """Return the schedule or the membership that a simulated run follows: a recorded one, or that of a resumed run.

  None: that of its config. Raises ValueError for a file that is no such record, or is of another kind of run.
  file: of --replay, or ""; folder: of the run to resume, None for a new one.
  """
  if file.endswith(".json") and not components.experiment.has_server:
    return presence.load(Path(file), components.experiment.workers)
  own = folder / EVENTS if folder else None
  replayed = recorded(Path(file), components) if file else None
  if not own or not own.exists() or not components.experiment.has_server:
    return replayed
  resumed = record.load(own)
  if replayed and not all(map(np.array_equal, replayed, resumed)):
    raise ValueError(f"replay={file} is not the schedule of the run in {folder}; a resumed run goes on with its own")
  return resumed


def recorded(path: Path, components: Components) -> Events:
  """Read a schedule that a run of this experiment can follow. Raises as `schedule` does."""
  algorithm: Any = components.algorithm
  config = components.experiment.to_json()
  if not components.experiment.has_server:
    name = config["algorithm"]["name"]
    raise ValueError(f"replay must be a {PRESENCE} with {name}, which has no server or peers, got {path}.")
  if not files.local(path).is_file():
    raise ValueError(f"replay={path}: no such file; a run on threads, on Ray or in virtual time leaves {EVENTS}")
  events = record.load(path)
  homes = [path.parent, *sorted(path.parent.glob("seed-*"))]  # a comparison's folders of seeds stand beside its record
  home = next((folder for folder in homes if (folder / CONFIG).exists()), None)
  if home is None:
    raise ValueError(f"replay={path}: there is no {CONFIG} of its run beside it, so what was recorded is not known")
  original, current = flat(read_json(home / CONFIG)), flat(config)
  differ = [f"{key} {original.get(key)} there, {current.get(key)} here"
            for key in SAME if original.get(key) != current.get(key)]  # fmt: skip
  if differ:
    raise ValueError(f"replay={path} was recorded by another kind of run: {'; '.join(differ)}")
  try:
    record.check(events, config["workers"])
  except ValueError as error:
    raise ValueError(f"replay={path}: {error}") from error
  if algorithm.lock_free and read_json(home / ABOUT).get("runtime", "simulator") != "simulator":
    raise ValueError(f"replay={path} was recorded without a lock: its events do not say in which order blocks mixed")
  needed = visits(algorithm, config["workers"], config["steps"])
  if len(events.worker) < needed:
    raise ValueError(f"replay={path} has {len(events.worker)} visits; config.steps={config['steps']} needs {needed}")
  return events
