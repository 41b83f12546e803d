"""Record the schedule of each asynchronous run (`Events`) in a file, and replay it with `train --replay=FILE`.

The replay of a run on threads is bit-exact if the algorithm is not lock-free and the replay computes each worker's
gradients on a separate device and without batching: --devices=WORKERS --virtual_grad=unroll.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ddl import files
from ddl.errors import OptionError
from ddl.events import presence, record
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.events.schedule import visits_until
from ddl.files import read_json
from ddl.run.build import Components
from ddl.run.folder import ABOUT, CONFIG, EVENTS, PRESENCE, flat

SAME = ("workers", "algorithm.name", "algorithm.period", "barrier.name")  # must be as in the recorded run


def save(folder: Path, events: Events) -> None:
  """Write the schedule to a run's folder."""
  folder.mkdir(parents=True, exist_ok=True)
  record.save(folder / EVENTS, events)


def schedule(file: str, folder: Path | None, components: Components) -> Events | Presence | None:
  """Return the recorded schedule or presence of workers that a simulated run follows; None if the config defines it.

  file: the value of --replay; folder: the folder of the run to resume, or None for a new run.

  Raises ValueError if the file is not such a record or is too short; if it is the record of a lock-free run in real
  time; if the recorded run differs in the number of workers, the algorithm, its period or the barrier; or if the run to
  resume has a different schedule.
  """
  if file.endswith(".json") and not components.experiment.has_server:
    return presence.load(Path(file), components.experiment.workers)
  saved = folder / EVENTS if folder else None
  replayed = recorded(Path(file), components) if file else None
  if not saved or not saved.exists() or not components.experiment.has_server:
    return replayed
  resumed = record.load(saved)
  if replayed and not all(map(np.array_equal, replayed, resumed)):
    raise ValueError(f"replay must be unset, or contain the same schedule as the resumed run ({saved}), got {file}.")
  return resumed


def recorded(path: Path, components: Components) -> Events:
  """Read a schedule and check that a run of this experiment can follow it. Raises as `schedule` does."""
  algorithm: Any = components.algorithm
  config = components.experiment.to_json()
  if not components.experiment.has_server:
    name = config["algorithm"]["name"]
    advice = f"With a collective algorithm such as {name}, only elastic runs can be replayed."
    raise OptionError("replay", f"a {PRESENCE}", path, advice)
  if not files.local(path).is_file():
    advice = f"Each run of a server algorithm writes {EVENTS} to its folder."
    raise ValueError(f"replay must be an existing file, got {path}. {advice}")
  events = record.load(path)
  folders = [path.parent, *sorted(path.parent.glob("seed-*"))]  # in a comparison, CONFIG is in the seeds' folders
  run_folder = next((folder for folder in folders if (folder / CONFIG).exists()), None)
  if run_folder is None:
    raise ValueError(f"replay must be a file in the folder of the recorded run, next to its {CONFIG}, got {path}.")
  original, current = flat(read_json(run_folder / CONFIG)), flat(config)
  differ = [f"config.{key} must be {original.get(key)}, got {current.get(key)}"
            for key in SAME if original.get(key) != current.get(key)]  # fmt: skip
  if differ:
    raise ValueError(f"replay={path}: {'; '.join(differ)}. These settings must equal those of the recorded run.")
  try:
    record.check(events, config["workers"])
  except ValueError as error:
    raise ValueError(f"replay={path}: {error}") from error
  if algorithm.lock_free and read_json(run_folder / ABOUT).get("runtime", "simulator") != "simulator":
    advice = "Lock-free runs in real time do not record the order of their updates."
    raise ValueError(f"replay must be a recorded run with locks or with runtime=simulator, got {path}. {advice}")
  try:
    visits_until(algorithm, events, config["workers"], config["steps"])
  except OptionError as error:
    raise ValueError(f"replay={path}: {error}") from error
  return events
