"""Split a run into calls of compiled programs, with boundaries for evaluations."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.schedule import Due, Ids, Schedule

MOST_KINDS = 4  # maximum number of compiled kinds of calls per run
MOST_CALLS = 10**7  # maximum number of calls per run; listing that many takes about a minute


class Kind(NamedTuple):
  """A kind of call, with one compiled function: it runs the steps of `unit`, `repeat` times.

  If `unit` is empty, it runs up to `longest` steps, with exchanges that are decided at run time.
  """

  unit: tuple[Due, ...]  # the exchanges due at each step
  repeat: int
  in_flight: Ids  # number of messages of each exchange in flight before the first step
  longest: int = 0


class Call(NamedTuple):
  """Consecutive steps that one call of a compiled program runs; `due` has an entry per step."""

  first: int
  kind: Kind
  due: tuple[Due, ...]
  in_flight: Ids  # number of messages of each exchange in flight before the first step

  @property
  def steps(self) -> int:
    """Return the number of steps."""
    return len(self.due)

  @property
  def end(self) -> int:
    """Return the step after the last."""
    return self.first + self.steps


def plan(schedule: Schedule, first: int, last: int, every: int, longest: int, flexible: int) -> list[Call]:
  """Split the steps first..last-1 of a run into calls; see `plan_parts`."""
  return plan_parts(schedule, [(first, last)], every, longest, flexible)


def plan_parts(
  schedule: Schedule, parts: Sequence[tuple[int, int]], every: int, longest: int, flexible: int
) -> list[Call]:
  """Split parts of a run into calls, with a boundary at each multiple of `every` and at most MOST_KINDS kinds of calls.

  A call contains one or more whole cycles of the schedule where a cycle fits before the next boundary and into
  `longest` steps. If this gives too many kinds, only the MOST_KINDS - 1 that cover the most steps remain. All other
  steps use one kind of call, which decides at run time which exchanges are due. Messages may be in flight between two
  calls.

  Args:
    schedule: the algorithm's schedule.
    parts: (first step, step after the last) of each part, in increasing order; no call spans two parts.
    every: steps between boundaries.
    longest: maximum steps per call.
    flexible: maximum steps of a call whose exchanges are decided at run time.

  Raises:
    ValueError: if there are more than MOST_CALLS calls.
  """
  steps = sum(last - first for first, last in parts)
  size = min(longest, every)
  if steps // size > MOST_CALLS:
    condition = f"at most {MOST_CALLS * size:,} ({MOST_CALLS:,} calls of {size} steps)"
    advice = "Use fewer steps, or increase config.eval_every or steps_per_call, whichever limits the steps of a call."
    raise OptionError("config.steps", condition, f"{steps:,}", advice)
  calls = [call for first, last in parts for call in _static(schedule, first, last, every, longest)]
  covered = Counter[Kind]()
  for call in calls:
    covered[call.kind] += call.steps
  if len(covered) <= MOST_KINDS:
    return calls
  common = {kind for kind, _ in covered.most_common(max(MOST_KINDS - 1, 0))}
  out, starts = list[Call](), {first for first, _ in parts}
  for call in calls:
    if call.kind in common:
      out.append(call)
      continue
    for at, due in enumerate(call.due, call.first):
      before = out[-1] if out else None
      continues = before and not before.kind.unit and at == before.end and at % every and at not in starts
      if before and continues and before.steps < flexible:
        out[-1] = before._replace(due=(*before.due, due))
      else:
        in_flight = schedule.in_flight(at)
        out.append(Call(at, Kind((), 0, (0,) * len(in_flight), flexible), (due,), in_flight))
  return out


def _static(schedule: Schedule, first: int, last: int, every: int, longest: int) -> Iterator[Call]:
  """Yield the calls for steps first..last-1, with exchanges that are fixed at compile time."""
  units: dict[tuple[int, int], tuple[Due, ...]] = {}
  step = first
  while step < last:
    stop = min(last, (step // every + 1) * every)
    into, cycle = schedule.cycle(step)
    length = min(cycle - into, stop - step)
    if into or length < cycle or cycle > longest:
      length, repeat = _share(length, longest), 1
    else:
      repeat = _share(_equal_cycles(schedule, step, (stop - step) // cycle), longest // cycle)
    unit = None
    if schedule.settled(step):
      unit = units.get((into, length))
    if unit is None:
      unit = tuple(schedule.due(t) for t in range(step, step + length))
      if schedule.settled(step):
        units[into, length] = unit
    in_flight = schedule.in_flight(step)
    call = Call(step, Kind(unit, repeat, in_flight), unit * repeat, in_flight)
    yield call
    step = call.end


def _equal_cycles(schedule: Schedule, step: int, cycles: int) -> int:
  """Return the number of consecutive cycles from `step`, at most `cycles`, with the same exchanges as the first."""
  if schedule.settled(step):
    return cycles
  _, cycle = schedule.cycle(step)
  in_flight, unit = schedule.in_flight(step), [schedule.due(t) for t in range(step, step + cycle)]
  for k in range(1, cycles):
    at = step + k * cycle
    if schedule.in_flight(at) != in_flight or any(schedule.due(at + i) != due for i, due in enumerate(unit)):
      return k
  return cycles


def _share(total: int, longest: int) -> int:
  """Return the largest part if `total` is split as evenly as possible into the fewest parts of at most `longest`."""
  parts = -(-total // longest)
  return -(-total // parts)
