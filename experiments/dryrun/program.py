"""A trainer's calls of one round in the steady state, compiled and read; kept in the user's cache folder as JSON."""

import contextlib
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax

from ddl.api import Tree
from ddl.engine import compiled_program as hlo_schedule
from ddl.engine import execution
from ddl.engine.calls import Call
from ddl.engine.compiled_program import Collective, Events
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.run.exit_codes import EXHAUSTED
from ddl.run.folder import write_whole

NEEDS = re.compile(r"(?:Used |HLO temporaries \()([\d.]+)([KMGT]?)\b")  # of the TPU compiler when it gives up
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
EDITION = 3  # of the saved analyses
MOST = 500  # saved analyses
MOST_STEPS = 100_000  # that are planned beyond a run's, until its rounds repeat
VERSIONS = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin")


class DryRunProgram(NamedTuple):
  """A kind of calls as one device runs it; bytes, those of memory per device."""

  steps: int  # of a call
  events: Events
  peak: float  # while it runs, or what it would need if refused
  refused: bool = False  # whether the compiler gives up for lack of memory
  arguments: float = 0.0
  temporary: float = 0.0
  collectives: tuple[Collective, ...] = ()
  count: int = 1  # of such calls in the steps that are looked at


def steady(trainer: CompiledTrainer, steps: int, every: int) -> list[tuple[Call, int]]:
  """Return the calls of a run of so many steps that stand for the others, with how many of each.

  The kind that covers most steps, if it holds a whole cycle of the clocks; else those of one cycle. Where rounds repeat
  only after MOST_STEPS, they are the calls of the run itself.
  """
  schedule = trainer.schedule
  least = [clock.first + clock.delay for clock in schedule.clocks if clock.steady]  # until all is settled
  whole = max(least, default=0) + 2 * schedule.cycle(0)[1] if len(least) == len(schedule.clocks) else 0
  calls = trainer.plan(0, max(steps, whole) if whole <= MOST_STEPS else steps, every)
  settled = [call for call in calls if schedule.settled(call.first)] or calls
  covered = Counter({call.kind: 0 for call in settled})
  for call in settled:
    covered[call.kind] += call.steps
  kind = max(covered, key=lambda kind: covered[kind])
  first = next(call for call in settled if call.kind == kind)
  into, cycle = schedule.cycle(first.first)
  if not into and first.steps % cycle == 0:
    return [(first, 1)]
  starts = [i for i, call in enumerate(settled) if schedule.cycle(call.first)[0] == 0]
  calls_kept, steps_seen = [], 0
  for call in settled[starts[0] if starts else 0 :]:
    calls_kept.append(call)
    steps_seen += call.steps
    if steps_seen >= cycle:
      break
  counts = Counter(call.kind for call in calls_kept)
  return [(next(call for call in calls_kept if call.kind == kind), count) for kind, count in counts.items()]


def analyse(
  trainer: CompiledTrainer, batch: Tree, steps: int, every: int, options: Mapping[str, str], cache: Path | None
) -> list[DryRunProgram]:
  """Compile and read the calls that stand for a run of so many steps with a pause at each multiple of `every`.

  batch: shapes [batch, ...] of one worker and step; options: of the compiler; cache: a folder, or None.
  """
  programs = []
  for call, count in steady(trainer, steps, every):
    lowered = trainer.lowered(call.kind, *trainer.shapes(call, batch))
    file = cache / f"{_key(lowered, trainer, options)}.json" if cache else None
    program = file and _load(file)
    if program is None:
      program = _compiled(lowered, trainer, call, options)
      if file:
        _save(file, program)
    programs.append(program._replace(count=count))
  return programs


def of_run(trainer: CompiledTrainer, batch: Tree, steps: int, every: int) -> list[DryRunProgram]:
  """The same of the programs that a run on this machine's devices then makes its steps with."""
  return [
    _read(trainer.compiled(call.kind, *trainer.shapes(call, batch)), trainer, call)._replace(count=count)
    for call, count in steady(trainer, steps, every)
  ]


def _compiled(lowered: Any, trainer: CompiledTrainer, call: Call, options: Mapping[str, str]) -> DryRunProgram:
  try:
    executable = execution.compiled(lowered, options)
  except jax.errors.JaxRuntimeError as error:
    if EXHAUSTED not in str(error):
      raise
    match = NEEDS.search(str(error))
    stays = device_bytes(trainer.carry)
    needs = max(float(match[1]) * UNITS[match[2]], stays) if match else stays
    return DryRunProgram(call.steps, [], needs, refused=True)
  return _read(executable, trainer, call)


def _read(executable: Any, trainer: CompiledTrainer, call: Call) -> DryRunProgram:
  schedule = hlo_schedule.read(executable.as_text(), trainer.workers.mesh)
  memory = executable.memory_analysis()
  arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
  outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes  # beside the arguments that they replace
  peak = arguments + outputs + temporary + memory.generated_code_size_in_bytes
  return DryRunProgram(call.steps, schedule.events, peak, False, arguments, temporary, tuple(schedule.collectives))


def device_bytes(tree: Any) -> float:
  """Bytes of shapes with shardings on one device."""
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _key(lowered: Any, trainer: CompiledTrainer, options: Mapping[str, str]) -> str:
  device, mesh = trainer.workers.device, trainer.workers.mesh
  versions = []
  for name in VERSIONS:
    with contextlib.suppress(metadata.PackageNotFoundError):
      versions.append(f"{name} {metadata.version(name)}")
  ids = [each.id for each in mesh.devices.flat]
  about = [EDITION, versions, sorted(options.items()), device.device_kind, mesh.devices.shape, ids]
  return hashlib.sha256(json.dumps(about).encode() + lowered.as_text().encode()).hexdigest()[:32]


def _load(file: Path) -> DryRunProgram | None:
  try:
    program = DryRunProgram(*json.loads(file.read_text()))
  except (OSError, ValueError):  # none, or not finished before its process was killed
    return None
  return program._replace(collectives=tuple(Collective(*fields) for fields in program.collectives))


def _save(file: Path, program: DryRunProgram) -> None:
  with contextlib.suppress(OSError):  # without a cache it only takes longer
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, json.dumps(program))
    entries = sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for old in entries[:-MOST]:
      old.unlink(missing_ok=True)
