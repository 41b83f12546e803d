"""Parser of the text of a compiled program: instructions, collectives, FLOP, bytes, and order of execution.

A schedule is a list of events, in a form that JSON can represent:

    ["work", FLOP, bytes, drives]   an operation; drives: whether it advances a chained collective
    ["copy", bytes]                 a copy between memories, overlapped with compute
    ["start", id, chain]            start of a collective; chain: whether it is chained
    ["done", id]                    end of a collective; later events need its result
    ["loop", times, events]         a loop with this number of iterations

A chained collective (only on TPUs) runs in parts, each fused with an operation, and advances only during these
operations. The end of a synchronous collective directly follows its start.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
BITS = {"pred": 8, "bf16": 16} | {f"{kind}{bits}": bits for kind in "fsu" for bits in (2, 4, 8, 16, 32, 64)}
HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
NAMED = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ")
NAME = re.compile(r"%([\w.\-]+)")
CALLED = re.compile(
  r"\b(?:calls|to_apply|body|branch_computations|(?:true|false)_computation)=\{?((?:%[\w.\-]+(?:, )?)+)"
)
ARRAY = re.compile(r"\b([a-z]+\d+[a-z0-9]*|pred)\[([\d,]*)\](?:\{([^}]*)\})?")
CHAIN = re.compile(r'custom_call_target="AsyncCollective(Start|Done)"')  # first or last part of a chain
PASSED = re.compile(r"\{(\d+)\}: \((\d+), ")  # in output_to_operand_aliasing: indices of a result and its operand
LISTED = re.compile(r"replica_groups=\{(\{[\d,{}]*\})\}")
COUNTED = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# In JAX 0.12: the axes of a mesh, optionally the order of its devices, and the axes that each group spans.
ALONG = re.compile(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?)\))? \{(.*?)\}")
PAIRS = re.compile(r"source_target_pairs=\{([\d,{}]+)\}")


class Instruction(NamedTuple):
  """A line of a computation: %name = shape opcode(operands), attributes."""

  name: str
  shape: str  # "f32[4,8]{1,0}", or "(..., ...)" for a tuple
  opcode: str
  arguments: str  # text between the parentheses
  attributes: str

  @property
  def operands(self) -> list[str]:
    """Return the names of the operands, which are instructions of the same computation."""
    return NAME.findall(self.arguments)

  @property
  def called(self) -> list[str]:
    """Return the names of the computations that this instruction calls, except the condition of a loop."""
    return [name for names in CALLED.findall(self.attributes) for name in NAME.findall(names)]


class Program(NamedTuple):
  """A parsed program; if the compiler has scheduled it, its instructions are in execution order."""

  computations: Mapping[str, Sequence[Instruction]]
  entry: str

  def chain(self, instruction: Instruction) -> str:
    """Return "start", "step" or "done" for a fusion that runs a part of a collective on a TPU, else ""."""
    if instruction.opcode != "fusion":
      return ""
    inner = [line for name in instruction.called for line in self.computations[name]]
    if not any(collective_kind(line) for line in inner):
      return ""
    markers = [match[1].lower() for line in inner if (match := CHAIN.search(line.attributes))]
    return markers[0] if markers else "step"


class Collective(NamedTuple):
  """One collective, as seen by each device of its groups."""

  kind: str  # one of KINDS
  nbytes: int  # of the whole array: the input of an all-reduce or reduce-scatter, the output of an all-gather
  size: int  # devices per group; 2 for a collective-permute
  axis: str  # mesh axis that the groups span; "" if they span several axes or none
  starts: bool  # asynchronous: other work may overlap it

  @property
  def sent(self) -> float:
    """Return the minimum number of bytes that a device sends, with n = `nbytes` and s = `size`.

    All-reduce: 2 n (s - 1) / s; permute: n; others: n (s - 1) / s.
    """
    if self.kind == "collective-permute":
      return self.nbytes
    return (2 if self.kind == "all-reduce" else 1) * self.nbytes * (self.size - 1) / self.size


def parse(text: str) -> Program:
  """Parse the text (`as_text`) of an executable."""
  computations: dict[str, list[Instruction]] = {"": []}  # lines outside of computations
  entry, current = "", ""
  for line in text.splitlines():
    if (head := HEAD.match(line)) and not current:
      current, entry = head[2], head[2] if head[1] else entry
      computations[current] = []
    elif line.startswith("}"):
      current = ""
    elif match := NAMED.match(line):
      computations[current].append(_instruction(match[1], line[match.end() :]))
  return Program(computations, entry)


def collectives(text: str, mesh: Mesh) -> list[Collective]:
  """Return the collectives in the text of an executable (`as_text`), counting those inside loops once."""
  program = parse(text)
  fusions = [line for lines in program.computations.values() for line in lines if line.opcode == "fusion"]
  # Count a chained collective only at its start.
  again = {name for line in fusions if program.chain(line) in ("step", "done") for name in line.called}
  lines = [line for name, lines in program.computations.items() if name not in again for line in lines]
  return [collective(line, mesh) for line in lines if collective_kind(line)]


def collective_kind(instruction: Instruction) -> str:
  """Return the kind of collective that an instruction runs or starts, "" for other instructions."""
  kind = instruction.opcode.removesuffix("-start")
  return kind if kind in KINDS else ""


def collective(instruction: Instruction, mesh: Mesh) -> Collective:
  """Parse a collective instruction: its opcode is one of KINDS, or one of them followed by "-start"."""
  kind, starts = collective_kind(instruction), instruction.opcode.endswith("-start")
  shapes = arrays(instruction.shape)
  if starts and kind in ("all-gather", "collective-permute", "reduce-scatter"):
    shapes = [entry for entry in shapes if entry[:2] != ("u32", "")]  # skip counters of a permute
    shapes = shapes[len(shapes) // 2 :]  # skip the inputs
  groups = _groups(instruction.attributes, mesh.size)
  size = len(groups[0]) if kind != "collective-permute" else 2
  scale = size if kind == "reduce-scatter" else 1
  starts = starts and '"is_sync":true' not in instruction.attributes
  return Collective(kind, sum(nbytes(*entry[:2]) for entry in shapes) * scale, size, _axis(groups, mesh), starts)


def arrays(shape: str) -> list[tuple[str, str, str]]:
  """Return (type, sizes, layout) of each array in a shape, which may be a tuple."""
  return ARRAY.findall(shape)


def dims(sizes: str) -> list[int]:
  """Parse "4,8" as [4, 8]."""
  return [int(size) for size in sizes.split(",") if size]


def nbytes(kind: str, sizes: str) -> int:
  """Return the bytes of an array. kind: its element type; sizes: its dimensions, such as "4,8"."""
  bits = BITS.get(kind) or BITS.get(re.sub(r"e\dm\d.*", "", kind), 8)
  return math.prod(dims(sizes)) * bits // 8


def _instruction(name: str, rest: str) -> Instruction:
  end = next(_closings(rest), len(rest)) if rest.startswith("(") else rest.find(" ")
  shape, rest = rest[:end], rest[end:].lstrip()
  opcode, _, rest = rest.partition("(")
  end = next(_closings("(" + rest), len(rest) + 2) - 1
  return Instruction(name, shape, opcode, rest[: end - 1], rest[end:])


def _closings(text: str) -> Iterator[int]:
  """Yield the position after each closing parenthesis at which all parentheses so far are balanced."""
  depth = 0
  for match in re.finditer(r"[()]", text):
    depth += 1 if match[0] == "(" else -1
    if not depth:
      yield match.end()


def _groups(line: str, devices: int) -> list[list[int]]:
  """Return the device groups of a collective, as positions in the mesh; if it lists none, one group of all devices.

  line: the attributes of the instruction.
  """
  if match := LISTED.search(line) or PAIRS.search(line):
    return [[int(n) for n in part.split(",")] for part in re.findall(r"\{([\d,]+)\}", match[1])]
  if match := ALONG.search(line):
    return _along(*match.groups())
  if match := re.search(f"replica_groups={COUNTED.pattern}", line):
    return _counted(match).tolist()
  return [[*range(devices)]]


def _counted(match: re.Match[str]) -> np.ndarray:
  shape, sizes = (dims(match[i]) for i in (1, 2))
  ids = np.arange(math.prod(sizes)).reshape(sizes)
  return (ids.transpose(dims(match[3])) if match[3] else ids).reshape(shape)


def _along(mesh: str, order: str | None, axes: str) -> list[list[int]]:
  """Return the groups of devices that span the given axes of a mesh. All arguments are in the notation of HLO.

  Args:
    mesh: names and sizes, "'a'=2,'b'=4".
    order: order of the devices, "[4,2]<=[8]" or "0,2,1,3,..."; None: 0, 1, 2, ...
    axes: "'a'" or "'a','b':(2)2"; (k)m is a sub-axis: split the axis into k x m x rest, take the factor m.
  """
  sizes = {name: int(size) for name, size in re.findall(r"([^',=]+)'?=(\d+)", mesh)}
  places = np.arange(math.prod(sizes.values()))
  counted = COUNTED.match(order or "")
  ids = places if order is None else np.ravel(_counted(counted) if counted else dims(order))
  index = dict(zip(sizes, np.unravel_index(places, tuple(sizes.values())), strict=True))
  start = dict(index)  # index of the group's first device
  for name, before, digits in re.findall(r"([^',:]+)'?(?::\((\d+)\)(\d+))?", axes):
    size = int(digits or sizes[name])
    step = sizes[name] // (int(before or 1) * size)
    start[name] = start[name] - index[name] // step % size * step
  group = np.ravel_multi_index(tuple(start.values()), tuple(sizes.values()))
  return [ids[group == place].tolist() for place in np.unique(group)]


def _axis(groups: Sequence[Sequence[int]], mesh: Mesh) -> str:
  places = [np.unravel_index(np.array(group), mesh.devices.shape) for group in groups]
  varies = [any(len(np.unique(place[axis])) > 1 for place in places) for axis in range(mesh.devices.ndim)]
  names = [name for name, changes in zip(mesh.axis_names, varies, strict=True) if changes]
  return str(names[0]) if len(names) == 1 else ""


FREE = {
  "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "iota",
  "opt-barrier", "copy-done", "slice-done", "add-dependency", "domain",
}  # fmt: skip
COPIES = ("copy-start", "slice-start", "dynamic-slice-start")  # operations overlapped with compute
SLICES = ("dynamic-slice", "slice", "gather")
VMEM = "S(1)"  # in a layout: on-chip memory, which takes no memory bandwidth
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
GEMM = re.compile(r'"lhs_contracting_dimensions":\[((?:"\d+",?)*)\]')
WINDOW = re.compile(r"window=\{([^}]*)\}")
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


class Costs:
  """The FLOP and bytes of a program's instructions. Only matrix products and convolutions count as FLOP."""

  def __init__(self, program: Program):
    self._program = program
    self._defined = {name: {line.name: line for line in lines} for name, lines in program.computations.items()}

  def flop(self, where: str, instruction: Instruction) -> int:
    """Return the FLOP of an instruction of computation `where`, with its fused or called instructions.

    Loops and conditionals count as 0.
    """
    defined = self._defined[where]
    if instruction.opcode == "dot":
      return _dot(instruction, defined, CONTRACTING.search(instruction.attributes))
    if instruction.opcode == "custom-call" and (match := GEMM.search(instruction.attributes)):
      return _dot(instruction, defined, match)
    if instruction.opcode in ("convolution", "custom-call") and LABELS.search(instruction.attributes):
      return _convolution(instruction, defined)
    if instruction.opcode in ("fusion", "call"):
      return sum(self.flop(name, line) for name in instruction.called for line in self._program.computations[name])
    return 0

  def nbytes(self, where: str, instruction: Instruction, drives: bool = False) -> int:
    """Return the bytes that an instruction reads and writes; of a sliced operand, only the slice counts.

    drives: whether the instruction advances a chained collective, whose message is passed on in place and not read.
    """
    if instruction.opcode in FREE:
      return 0
    if instruction.opcode in COPIES:
      return _memory_bytes(instruction.shape)  # a tuple (source, copy)
    if instruction.opcode in SLICES:
      return 2 * _memory_bytes(instruction.shape)
    defined = self._defined[where]
    read = [_memory_bytes(defined[name].shape) if name in defined else 0 for name in instruction.operands]
    written = _memory_bytes(instruction.shape)
    if instruction.opcode == "dynamic-update-slice":
      return 2 * read[1]
    if drives:
      passed = [int(place) for _, place in PASSED.findall(instruction.attributes)]  # results may share an operand
      in_place = sum(read[place] for place in passed)
      return sum(read) - sum(read[place] for place in {*passed}) + max(0, written - in_place)
    for name in instruction.called if instruction.opcode == "fusion" else ():
      inner = self._program.computations[name]
      users: dict[str, list[Instruction]] = {}
      for line in inner:
        for operand in line.operands:
          users.setdefault(operand, []).append(line)
      for line in inner:
        using = users.get(line.name, [])
        if line.opcode != "parameter" or not using or any(user.operands[0] != line.name for user in using):
          continue
        place = int(line.arguments)
        if all(user.opcode in SLICES for user in using):
          read[place] = min(read[place], sum(_memory_bytes(user.shape) for user in using))
        elif all(user.opcode == "dynamic-update-slice" for user in using):  # in place
          updates = sum(_memory_bytes(self._defined[name][user.operands[1]].shape) for user in using)
          read[place], written = 0, max(0, written - read[place]) + updates
    return sum(read) + written

  def trips(self, loop: Instruction) -> int:
    """Return a loop's number of iterations: that known to XLA, else the largest constant in the condition, else 1."""
    if match := TRIPS.search(loop.attributes):
      return int(match[1])
    name = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
    condition = self._program.computations.get(name[1], ()) if name else ()
    numbers = [int(line.arguments) for line in condition if line.opcode == "constant" and line.arguments.isdigit()]
    return max(numbers, default=1)


def _memory_bytes(shape: str) -> int:
  """Return the total bytes of the arrays in a shape, except those in a TPU's VMEM."""
  return sum(nbytes(kind, sizes) for kind, sizes, layout in arrays(shape) if VMEM not in layout)


def _sizes(shape: str) -> list[int]:
  """Return the dimensions of the first array in a shape."""
  return dims(arrays(shape)[0][1])


def _dot(instruction: Instruction, defined: Mapping[str, Instruction], contracting: re.Match[str] | None) -> int:
  """Return the FLOP of a matrix product: 2 x (number of values in the result) x (size of the contracted axes)."""
  left = _sizes(defined[instruction.operands[0]].shape)
  axes = [int(axis) for axis in re.findall(r"\d+", contracting[1])] if contracting else []
  return 2 * math.prod(_sizes(instruction.shape)) * math.prod(left[axis] for axis in axes)


def _convolution(instruction: Instruction, defined: Mapping[str, Instruction]) -> int:
  """Return the FLOP of a convolution: 2 per output value, input channel and kernel position that is not on padding."""
  match = LABELS.search(instruction.attributes)
  assert match
  left, right, out = match.groups()
  x, kernel = (_sizes(defined[name].shape) for name in instruction.operands[:2])
  y = _sizes(instruction.shape)
  window_match = WINDOW.search(instruction.attributes)
  window = dict(part.split("=") for part in window_match[1].split()) if window_match else {}

  def setting(key: str, axis: int, default: str) -> str:
    return window[key].split("x")[axis] if key in window else default

  taps = 1
  for axis in range(sum(label.isdigit() for label in out)):
    label = str(axis)
    low = int(setting("pad", axis, "0_0").split("_")[0])
    steps = (int(setting(key, axis, "1")) for key in ("stride", "lhs_dilate", "rhs_dilate"))
    taps *= _taps(x[left.index(label)], kernel[right.index(label)], y[out.index(label)], low, *steps)
  return 2 * y[out.index("b")] * y[out.index("f")] * kernel[right.index("i")] * taps


@cache
def _taps(size: int, kernel: int, out: int, low: int, stride: int, spread: int, dilation: int) -> int:
  """Return the number of (output, kernel) positions along one axis that read an input value instead of padding."""
  at = np.arange(out)[:, None] * stride + np.arange(kernel)[None] * dilation - low
  return int(np.count_nonzero((at >= 0) & (at % spread == 0) & (at // spread < size)))


Events = list[list[Any]]
INDEX = re.compile(r"index=(\d+)")


class InstructionSchedule(NamedTuple):
  """The schedule of a program on one device."""

  events: Events
  collectives: list[Collective]  # indexed by the id in events


def read(text: str, mesh: Mesh) -> InstructionSchedule:
  """Parse the schedule in the text of an executable (`as_text`)."""
  reader = _Reader(parse(text), mesh)
  return InstructionSchedule(reader.events(reader.program.entry), reader.collectives)


def flop(events: Events) -> float:
  """Return the FLOP of matrix products and convolutions, including all iterations of loops."""
  return sum(
    _times(event, flop) if event[0] == "loop" else event[1] for event in events if event[0] in ("work", "loop")
  )


def memory_traffic(events: Events) -> float:
  """Return the bytes read from and written to memory over all loop iterations, excluding collectives."""
  counts = {"work": lambda event: event[2], "copy": lambda event: event[1], "loop": lambda e: _times(e, memory_traffic)}
  return sum(counts[event[0]](event) for event in events if event[0] in counts)


def _times(event: list[Any], of: Any) -> float:
  return event[1] * of(event[2])


class _Reader:
  def __init__(self, program: Program, mesh: Mesh):
    self.program, self._mesh, self._costs = program, mesh, Costs(program)
    self.collectives: list[Collective] = []

  def events(self, name: str) -> Events:
    """Return the events of one execution of a computation."""
    lines = self.program.computations[name]
    defined = {line.name: line for line in lines}
    chains = {line.name: chain for line in lines if (chain := self.program.chain(line))}
    out, ids = [], {}
    for line in lines:
      chain = chains.get(line.name, "")
      inside = [x for called in line.called for x in self.program.computations[called] if collective_kind(x)]
      if chain == "start" or (line.opcode == "async-start" and inside):
        ids[line.name] = self._add(inside[0], starts=True)
        out.append(["start", ids[line.name], chain == "start"])
      elif chain == "done":
        out.append(["done", ids[self._started(line, defined, chains)]])
      elif collective_kind(line):
        number = self._add(line, starts=line.opcode.endswith("-start"))
        out.append(["start", number, False])
        if self.collectives[number].starts:
          ids[line.name] = number
        else:
          out.append(["done", number])
      elif line.opcode.endswith("-done"):
        if started := [ids[operand] for operand in line.operands if operand in ids]:
          out.append(["done", started[0]])
      elif line.opcode == "while":
        body = [called for called in line.called if f"body=%{called}" in line.attributes]
        out.append(["loop", self._costs.trips(line), self.events(body[0])])
      elif line.opcode == "conditional":  # assume the branch with the most FLOP
        out += max((self.events(called) for called in line.called), key=lambda events: (flop(events), len(events)))
      elif line.opcode == "call":
        out += [event for called in line.called for event in self.events(called)]
      else:
        out += self._work(name, line, chain == "step")
    return out

  def _work(self, where: str, instruction: Instruction, drives: bool) -> Events:
    amount, moved = self._costs.flop(where, instruction), self._costs.nbytes(where, instruction, drives)
    if instruction.opcode.endswith("-start"):
      return [["copy", moved]] if moved else []
    return [["work", amount, moved, drives]] if amount or moved or drives else []

  def _add(self, instruction: Instruction, starts: bool) -> int:
    record = collective(instruction, self._mesh)
    synchronous = '"is_sync":true' in instruction.attributes
    self.collectives.append(record._replace(starts=starts and not synchronous))
    return len(self.collectives) - 1

  def _started(self, done: Instruction, defined: dict[str, Instruction], chains: dict[str, str]) -> str:
    """Return the name of the instruction that starts the collective that `done` completes, by tracing back operands."""
    for name in done.operands:
      place = None  # index of the message in the tuple `name`
      while name in defined:
        line = defined[name]
        if chains.get(name) == "start":
          return name
        if line.opcode == "get-tuple-element":
          place = INDEX.search(line.attributes)
        elif line.opcode in ("while", "tuple") and place:  # a loop that advances the collective keeps the index
          name = line.operands[int(place[1]) if line.opcode == "tuple" else 0]
          continue
        elif chains.get(name) == "step":
          passed = dict(PASSED.findall(line.attributes))
          if place is None or place[1] not in passed:
            break
          name = line.operands[int(passed[place[1]])]
          continue
        elif line.opcode not in ("bitcast", "copy"):
          break
        name = line.operands[0]
    raise ValueError(f"cannot find the start of the collective that {done.name} completes in the compiled program")
