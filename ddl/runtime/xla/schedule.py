"""What a device does and in which order, from the text of a compiled program: compute, collectives and their overlap.

A schedule is a list of events that is also JSON:

    ["work", FLOP, bytes, drives]   an operation; drives: a collective that is a chain goes on within it (TPU)
    ["copy", bytes]                 between memories, beside the compute
    ["start", id, chain]            a collective leaves; chain: it needs the kernels that drive it
    ["done", id]                    what follows needs its result
    ["loop", times, events]

A collective that is not asynchronous starts and is done at once.
"""

import re
from typing import Any, NamedTuple

from jax.sharding import Mesh

from ddl.runtime.xla.costs import Costs
from ddl.runtime.xla.hlo import PASSED, Collective, Instruction, Program, collective, collective_kind, parse

Events = list[list[Any]]
INDEX = re.compile(r"index=(\d+)")


class Schedule(NamedTuple):
  """Of one program, on one device."""

  events: Events
  collectives: list[Collective]  # by id


def read(text: str, mesh: Mesh) -> Schedule:
  """Return the schedule of an executable. text: its `as_text`."""
  reader = _Reader(parse(text), mesh)
  return Schedule(reader.events(reader.program.entry), reader.collectives)


def flop(events: Events) -> float:
  """Return the FLOP of products and convolutions, those in loops as often as these run."""
  return sum(
    _times(event, flop) if event[0] == "loop" else event[1] for event in events if event[0] in ("work", "loop")
  )


def nbytes(events: Events) -> float:
  """Return the bytes that are read from and written to memory, likewise; those of the collectives left out."""
  counted = {"work": lambda event: event[2], "copy": lambda event: event[1], "loop": lambda e: _times(e, nbytes)}
  return sum(counted[event[0]](event) for event in events if event[0] in counted)


def _times(event: list[Any], of: Any) -> float:
  return event[1] * of(event[2])


class _Reader:
  def __init__(self, program: Program, mesh: Mesh):
    self.program, self._mesh, self._costs = program, mesh, Costs(program)
    self.collectives: list[Collective] = []

  def events(self, name: str) -> Events:
    """Return those of one run of a computation."""
    lines = self.program.computations[name]
    defined = {each.name: each for each in lines}
    chains = {each.name: chain for each in lines if (chain := self.program.chain(each))}
    out, ids = [], {}
    for each in lines:
      chain = chains.get(each.name, "")
      inside = [x for called in each.called for x in self.program.computations[called] if collective_kind(x)]
      if chain == "start" or (each.opcode == "async-start" and inside):
        ids[each.name] = self._add(inside[0], starts=True)
        out.append(["start", ids[each.name], chain == "start"])
      elif chain == "done":
        out.append(["done", ids[self._started(each, defined, chains)]])
      elif collective_kind(each):
        number = self._add(each, starts=each.opcode.endswith("-start"))
        out.append(["start", number, False])
        if self.collectives[number].starts:
          ids[each.name] = number
        else:
          out.append(["done", number])
      elif each.opcode.endswith("-done"):
        if found := [ids[operand] for operand in each.operands if operand in ids]:
          out.append(["done", found[0]])
      elif each.opcode == "while":
        body = [called for called in each.called if f"body=%{called}" in each.attributes]
        out.append(["loop", self._costs.trips(each), self.events(body[0])])
      elif each.opcode == "conditional":  # one of its branches runs: the longest
        out += max((self.events(called) for called in each.called), key=lambda events: (flop(events), len(events)))
      elif each.opcode == "call":
        out += [event for called in each.called for event in self.events(called)]
      else:
        out += self._work(name, each, chain == "step")
    return out

  def _work(self, where: str, instruction: Instruction, drives: bool) -> Events:
    amount, moved = self._costs.flop(where, instruction), self._costs.nbytes(where, instruction, drives)
    if instruction.opcode.endswith("-start"):
      return [["copy", moved]] if moved else []
    return [["work", amount, moved, drives]] if amount or moved or drives else []

  def _add(self, instruction: Instruction, starts: bool) -> int:
    found = collective(instruction, self._mesh)
    synchronous = '"is_sync":true' in instruction.attributes
    self.collectives.append(found._replace(starts=starts and not synchronous))
    return len(self.collectives) - 1

  def _started(self, done: Instruction, defined: dict[str, Instruction], chains: dict[str, str]) -> str:
    """Return the start of the chain that this ends: on the way back its message passes in place through its steps."""
    for name in done.operands:
      place = None  # of the message in the tuple that `name` is
      while name in defined:
        each = defined[name]
        if chains.get(name) == "start":
          return name
        if each.opcode == "get-tuple-element":
          place = INDEX.search(each.attributes)
        elif each.opcode in ("while", "tuple") and place:  # a loop, whose kernels drive it, has it in the same place
          name = each.operands[int(place[1]) if each.opcode == "tuple" else 0]
          continue
        elif chains.get(name) == "step":
          handed_on = dict(PASSED.findall(each.attributes))
          if place is None or place[1] not in handed_on:
            break
          name = each.operands[int(handed_on[place[1]])]
          continue
        elif each.opcode not in ("bitcast", "copy"):
          break
        name = each.operands[0]
    raise ValueError(f"{done.name} of the compiled program ends a collective that nothing begins")
