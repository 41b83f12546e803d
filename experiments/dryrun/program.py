"""Compile and analyze the programs that a trainer calls for a round in the steady state; cache the results as JSON."""

import contextlib
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
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
from ddl.run.folder import package_versions, write_whole

NEEDS = re.compile(r"(?:Used |HLO temporaries \()([\d.]+)([KMGT]?)\b")  # from the TPU compiler's out-of-memory error
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
EDITION = 3  # version of the cached format
MOST = 500  # maximum number of cached analyses
MOST_STEPS = 100_000  # maximum number of steps to plan until the rounds repeat


class DryRunProgram(NamedTuple):
  """A compiled program, as one device runs it for a `Call`; memory is in bytes per device."""

  steps: int  # per call
  events: Events
  peak: float  # largest memory while it runs; if refused, a lower bound of the memory that it needs
  refused: bool = False  # whether the compiler failed because the program needs too much memory
  arguments: float = 0.0
  temporary: float = 0.0
  collectives: tuple[Collective, ...] = ()
  count: int = 1  # number of calls of this kind in the analyzed steps


def steady(trainer: CompiledTrainer, steps: int, every: int) -> list[tuple[Call, int]]:
  """Return calls that represent the steady state of a run of `steps` steps: one call of each kind, with its count.

  If a call of the kind that covers the most steps contains whole cycles of the schedule, return only this call;
  otherwise, return the calls of one cycle. If the run ends before its steady state begins, later steps are analyzed as
  well, unless this takes more than MOST_STEPS steps. every: steps between evaluations.
  """
  schedule = trainer.schedule
  least = [clock.first + clock.delay for clock in schedule.clocks if clock.steady]  # steps until the steady state
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
  cycle_calls, cycle_steps = [], 0
  for call in settled[starts[0] if starts else 0 :]:
    cycle_calls.append(call)
    cycle_steps += call.steps
    if cycle_steps >= cycle:
      break
  counts = Counter(call.kind for call in cycle_calls)
  return [(next(call for call in cycle_calls if call.kind == kind), count) for kind, count in counts.items()]


def analyse(
  trainer: CompiledTrainer, batch: Tree, steps: int, every: int, options: Mapping[str, str], cache: Path | None
) -> list[DryRunProgram]:
  """Compile and analyze the calls that represent a run, see `steady`.

  Args:
    batch: shapes [batch, ...] of one worker's step.
    options: XLA compiler options.
    cache: the folder of saved analyses, or None.
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
  """Analyze the calls that represent a run, as compiled for this machine's devices; arguments as in `analyse`."""
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
    carry = device_bytes(trainer.carry)
    needs = max(float(match[1]) * UNITS[match[2]], carry) if match else carry
    return DryRunProgram(call.steps, [], needs, refused=True)
  return _read(executable, trainer, call)


def _read(executable: Any, trainer: CompiledTrainer, call: Call) -> DryRunProgram:
  schedule = hlo_schedule.read(executable.as_text(), trainer.workers.mesh)
  memory = executable.memory_analysis()
  arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
  outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes  # those that do not reuse donated arguments
  peak = arguments + outputs + temporary + memory.generated_code_size_in_bytes
  return DryRunProgram(call.steps, schedule.events, peak, False, arguments, temporary, tuple(schedule.collectives))


def device_bytes(tree: Any) -> float:
  """Return the bytes per device of a pytree of sharded arrays or their shapes."""
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _key(lowered: Any, trainer: CompiledTrainer, options: Mapping[str, str]) -> str:
  device, mesh = trainer.workers.device, trainer.workers.mesh
  ids = [device.id for device in mesh.devices.flat]
  about = [EDITION, package_versions(), sorted(options.items()), device.device_kind, mesh.devices.shape, ids]
  return hashlib.sha256(json.dumps(about).encode() + lowered.as_text().encode()).hexdigest()[:32]


def _load(file: Path) -> DryRunProgram | None:
  try:
    program = DryRunProgram(*json.loads(file.read_text()))
  except (OSError, ValueError):  # missing, or incomplete because its process was killed
    return None
  return program._replace(collectives=tuple(Collective(*fields) for fields in program.collectives))


def _save(file: Path, program: DryRunProgram) -> None:
  with contextlib.suppress(OSError):  # the cache is optional
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, json.dumps(program))
    entries = sorted(file.parent.glob("*.json"), key=lambda entry: entry.stat().st_mtime)
    for old in entries[:-MOST]:
      old.unlink(missing_ok=True)
