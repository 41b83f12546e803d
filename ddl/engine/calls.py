"""A run split into compiled calls, with evaluations between them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.schedule import Due, Ids, Schedule

MOST_KINDS = 4  # maximum kinds compiled for one run, for any periods and pauses
MOST_CALLS = 10**7  # maximum per run: listing them takes about a minute


class Kind(NamedTuple):
  """A compiled function: `repeat` times the steps of `unit`, or any steps up to `longest` if `unit` is empty."""

  unit: tuple[Due, ...]  # the exchanges due at each step
  repeat: int
  in_flight: Ids  # messages of each exchange before the first step
  longest: int = 0


class Call(NamedTuple):
  """Consecutive steps from `first` on; `due` has an entry per step."""

  first: int
  kind: Kind
  due: tuple[Due, ...]
  in_flight: Ids

  @property
  def steps(self) -> int:
    """Return the number of steps."""
    return len(self.due)

  @property
  def end(self) -> int:
    """Return the step after the last."""
    return self.first + self.steps


def plan(schedule: Schedule, first: int, last: int, every: int, longest: int, flexible: int) -> list[Call]:
  """Split the steps first..last-1 into calls, as `plan_parts` does for one part."""
  return plan_parts(schedule, [(first, last)], every, longest, flexible)


def plan_parts(
  schedule: Schedule, parts: Sequence[tuple[int, int]], every: int, longest: int, flexible: int
) -> list[Call]:
  """Split parts of a run into calls of at most MOST_KINDS kinds, with pauses at the multiples of `every`.

  A call contains one or more whole cycles of the clocks, if they fit into `longest` steps. If this gives too many
  kinds, the three that cover most steps are kept; the others become calls of one kind, whose exchanges are decided at
  run time. Messages may be in flight between two calls.

  Args:
    schedule: the algorithm's schedule.
    parts: (first step, the step after the last) of each, increasing; a call does not span two of them.
    every: steps between pauses.
    longest: maximum steps per call.
    flexible: maximum steps of a call whose exchanges are decided at run time.

  Raises:
    ValueError: for more than MOST_CALLS calls.
  """
  steps = sum(last - first for first, last in parts)
  if (least := max(steps // longest, steps // every)) > MOST_CALLS:
    condition = f"at most {MOST_CALLS:,} calls of up to {min(longest, every)} steps"
    raise OptionError("config.steps", condition, f"{least:,}", "Use fewer steps or a larger config.eval_every.")
  calls = [call for first, last in parts for call in _static(schedule, first, last, every, longest)]
  covered = Counter[Kind]()
  for call in calls:
    covered[call.kind] += call.steps
  if len(covered) <= MOST_KINDS:
    return calls
  common = {kind for kind, _ in covered.most_common(max(MOST_KINDS - 1, 0))}
  out, begins = list[Call](), {first for first, _ in parts}
  for call in calls:
    if call.kind in common:
      out.append(call)
      continue
    for at, due in enumerate(call.due, call.first):
      before = out[-1] if out else None
      goes_on = before and not before.kind.unit and at == before.end and at % every and at not in begins
      if before and goes_on and before.steps < flexible:
        out[-1] = before._replace(due=(*before.due, due))
      else:
        in_flight = schedule.in_flight(at)
        out.append(Call(at, Kind((), 0, (0,) * len(in_flight), flexible), (due,), in_flight))
  return out


def _static(schedule: Schedule, first: int, last: int, every: int, longest: int) -> Iterator[Call]:
  """Yield calls whose exchanges are known at compile time."""
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
  """Return the number of upcoming cycles, at least one, that have the same exchanges as the next."""
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
  """Return the first length when splitting `total` into the fewest nearly equal parts up to `longest`."""
  parts = -(-total // longest)
  return -(-total // parts)
