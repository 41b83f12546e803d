"""The text of a compiled program, parsed: instructions, collectives, FLOP and bytes, and their order of execution.

A schedule is a list of events that is also JSON:

    ["work", FLOP, bytes, drives]   an operation; drives: a chained collective progresses within it (TPU)
    ["copy", bytes]                 between memories, overlapped with compute
    ["start", id, chain]            a collective leaves; chain: it needs the kernels that drive it
    ["done", id]                    what follows needs its result
    ["loop", times, events]

A collective that is not asynchronous starts and is done at once.
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
CHAIN = re.compile(r'custom_call_target="AsyncCollective(Start|Done)"')  # of TPUs: a fusion that begins or ends a chain
PASSED = re.compile(
  r"\{(\d+)\}: \((\d+), "
)  # of output_to_operand_aliasing: a result, and the operand in whose place it is
LISTED = re.compile(r"replica_groups=\{(\{[\d,{}]*\})\}")
COUNTED = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# Of JAX 0.12: the axes of a mesh, perhaps the order of its devices, and the axes along which a group lies.
ALONG = re.compile(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?)\))? \{(.*?)\}")
PAIRS = re.compile(r"source_target_pairs=\{([\d,{}]+)\}")


class Instruction(NamedTuple):
  """A line of a computation: %name = shape opcode(operands), attributes."""

  name: str
  shape: str  # "f32[4,8]{1,0}", or "(..., ...)" of a tuple
  opcode: str
  arguments: str  # between the brackets
  attributes: str

  @property
  def operands(self) -> list[str]:
    """Names of instructions of the same computation."""
    return NAME.findall(self.arguments)

  @property
  def called(self) -> list[str]:
    """Computations that it calls; the condition of a loop is not among them."""
    return [name for names in CALLED.findall(self.attributes) for name in NAME.findall(names)]


class Program(NamedTuple):
  """Computations by name, each in the order in which its instructions run if the text is that of a schedule."""

  computations: Mapping[str, Sequence[Instruction]]
  entry: str

  def chain(self, instruction: Instruction) -> str:
    """Return "start", "step" or "done" of a collective that TPUs run inside of the kernels of others, else ""."""
    if instruction.opcode != "fusion":
      return ""
    inner = [each for name in instruction.called for each in self.computations[name]]
    if not any(collective_kind(each) for each in inner):
      return ""
    markers = [match[1].lower() for each in inner if (match := CHAIN.search(each.attributes))]
    return markers[0] if markers else "step"


class Collective(NamedTuple):
  """One collective, as each device of its groups takes part in it."""

  kind: str  # one of KINDS
  nbytes: int  # of the whole array: what an all-reduce sums, an all-gather returns, a reduce-scatter takes
  size: int  # devices of a group
  axis: str  # of the mesh that the group spans; "" for both
  starts: bool  # asynchronous: other work runs until it is done

  @property
  def sent(self) -> float:
    """Least bytes that a device sends: n (s - 1) / s, twice that for an all-reduce, n for a permute."""
    if self.kind == "collective-permute":
      return self.nbytes
    return (2 if self.kind == "all-reduce" else 1) * self.nbytes * (self.size - 1) / self.size


def parse(text: str) -> Program:
  """Read `as_text` of an executable."""
  computations: dict[str, list[Instruction]] = {"": []}  # lines by themselves
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
  """Return those of a compiled program, each once, also inside of loops. text: `as_text` of the executable."""
  program = parse(text)
  fusions = [each for lines in program.computations.values() for each in lines if each.opcode == "fusion"]
  # A chain is counted where it starts.
  again = {name for each in fusions if program.chain(each) in ("step", "done") for name in each.called}
  lines = [each for name, lines in program.computations.items() if name not in again for each in lines]
  return [collective(each, mesh) for each in lines if collective_kind(each)]


def collective_kind(instruction: Instruction) -> str:
  """Return its kind where it is a collective or the start of one, else ""."""
  kind = instruction.opcode.removesuffix("-start")
  return kind if kind in KINDS else ""


def collective(instruction: Instruction, mesh: Mesh) -> Collective:
  """Read one; its opcode is one of KINDS, or that with "-start"."""
  kind, starts = collective_kind(instruction), instruction.opcode.endswith("-start")
  shapes = arrays(instruction.shape)
  if starts and kind in ("all-gather", "collective-permute", "reduce-scatter"):
    shapes = [each for each in shapes if each[:2] != ("u32", "")]  # a permute's counters
    shapes = shapes[len(shapes) // 2 :]  # after what goes in
  groups = _groups(instruction.attributes, mesh.size)
  size = len(groups[0]) if kind != "collective-permute" else 2
  scale = size if kind == "reduce-scatter" else 1
  starts = starts and '"is_sync":true' not in instruction.attributes
  return Collective(kind, sum(nbytes(*each[:2]) for each in shapes) * scale, size, _axis(groups, mesh), starts)


def arrays(shape: str) -> list[tuple[str, str, str]]:
  """Return (type, sizes, layout) of each array of a shape."""
  return ARRAY.findall(shape)


def dims(sizes: str) -> list[int]:
  """Return "4,8" as [4, 8]."""
  return [int(size) for size in sizes.split(",") if size]


def nbytes(kind: str, sizes: str) -> int:
  """Return the bytes of an array of this type and these sizes."""
  bits = BITS.get(kind) or BITS.get(re.sub(r"e\dm\d.*", "", kind), 8)
  return math.prod(dims(sizes)) * bits // 8


def _instruction(name: str, rest: str) -> Instruction:
  end = next(_closings(rest), len(rest)) if rest.startswith("(") else rest.find(" ")
  shape, rest = rest[:end], rest[end:].lstrip()
  opcode, _, rest = rest.partition("(")
  end = next(_closings("(" + rest), len(rest) + 2) - 1
  return Instruction(name, shape, opcode, rest[: end - 1], rest[end:])


def _closings(text: str) -> Iterator[int]:
  """Yield the places after the brackets that close the first one."""
  depth = 0
  for match in re.finditer(r"[()]", text):
    depth += 1 if match[0] == "(" else -1
    if not depth:
      yield match.end()


def _groups(line: str, devices: int) -> list[list[int]]:
  """Return groups of devices by their place in the mesh; one group of all if a line names none."""
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
  """Return the groups of devices along axes of a mesh in the text of a program.

  Args:
    mesh: names and sizes, "'a'=2,'b'=4".
    order: of the devices, "[4,2]<=[8]" or "0,2,1,3,..."; None: 0, 1, 2, ...
    axes: "'a'" or "'a','b':(2)2"; the part (k)m of an axis is its digit of m values after a leading one of k.
  """
  sizes = {name: int(size) for name, size in re.findall(r"([^',=]+)'?=(\d+)", mesh)}
  places = np.arange(math.prod(sizes.values()))
  counted = COUNTED.match(order or "")
  ids = places if order is None else np.ravel(_counted(counted) if counted else dims(order))
  index = dict(zip(sizes, np.unravel_index(places, tuple(sizes.values())), strict=True))
  start = dict(index)  # of the group's first device
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
COPIES = ("copy-start", "slice-start", "dynamic-slice-start")  # overlapped with compute
SLICES = ("dynamic-slice", "slice", "gather")
VMEM = "S(1)"  # in a layout: on the chip, so that reading it takes no memory bandwidth
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
GEMM = re.compile(r'"lhs_contracting_dimensions":\[((?:"\d+",?)*)\]')
WINDOW = re.compile(r"window=\{([^}]*)\}")
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


class Costs:
  """Of one program. Additions and other arithmetic outside of products and convolutions are left out."""

  def __init__(self, program: Program):
    self._program = program
    self._defined = {name: {each.name: each for each in lines} for name, lines in program.computations.items()}

  def flop(self, where: str, instruction: Instruction) -> int:
    """Return the FLOP of an instruction of the computation `where`, those that it calls included, but no loop."""
    defined = self._defined[where]
    if instruction.opcode == "dot":
      return _dot(instruction, defined, CONTRACTING.search(instruction.attributes))
    if instruction.opcode == "custom-call" and (match := GEMM.search(instruction.attributes)):
      return _dot(instruction, defined, match)
    if instruction.opcode in ("convolution", "custom-call") and LABELS.search(instruction.attributes):
      return _convolution(instruction, defined)
    if instruction.opcode in ("fusion", "call"):
      return sum(self.flop(name, each) for name in instruction.called for each in self._program.computations[name])
    return 0

  def nbytes(self, where: str, instruction: Instruction, drives: bool = False) -> int:
    """Return the bytes that an instruction reads from and writes to memory; of a sliced operand, only the slice.

    drives: it is a step of a chain, whose message it hands on in place: that is left out.
    """
    if instruction.opcode in FREE:
      return 0
    if instruction.opcode in COPIES:
      return _held(instruction.shape)  # a tuple of source and copy
    if instruction.opcode in SLICES:
      return 2 * _held(instruction.shape)
    defined = self._defined[where]
    read = [_held(defined[name].shape) if name in defined else 0 for name in instruction.operands]
    written = _held(instruction.shape)
    if instruction.opcode == "dynamic-update-slice":
      return 2 * read[1]
    if drives:
      handed_on = [int(place) for _, place in PASSED.findall(instruction.attributes)]  # two results may have one source
      in_place = sum(read[place] for place in handed_on)
      return sum(read) - sum(read[place] for place in {*handed_on}) + max(0, written - in_place)
    for name in instruction.called if instruction.opcode == "fusion" else ():
      inner = self._program.computations[name]
      users: dict[str, list[Instruction]] = {}
      for each in inner:
        for operand in each.operands:
          users.setdefault(operand, []).append(each)
      for each in inner:
        using = users.get(each.name, [])
        if each.opcode != "parameter" or not using or any(user.operands[0] != each.name for user in using):
          continue
        place = int(each.arguments)
        if all(user.opcode in SLICES for user in using):
          read[place] = min(read[place], sum(_held(user.shape) for user in using))
        elif all(user.opcode == "dynamic-update-slice" for user in using):  # in place
          updates = sum(_held(self._defined[name][user.operands[1]].shape) for user in using)
          read[place], written = 0, max(0, written - read[place]) + updates
    return sum(read) + written

  def trips(self, loop: Instruction) -> int:
    """Return how often the body of a loop runs: as XLA notes it, or the constant that its condition compares with."""
    if match := TRIPS.search(loop.attributes):
      return int(match[1])
    name = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
    condition = self._program.computations.get(name[1], ()) if name else ()
    numbers = [int(each.arguments) for each in condition if each.opcode == "constant" and each.arguments.isdigit()]
    return max(numbers, default=1)


def _held(shape: str) -> int:
  """Return the bytes of the arrays of a shape that are in memory."""
  return sum(nbytes(kind, sizes) for kind, sizes, layout in arrays(shape) if VMEM not in layout)


def _sizes(shape: str) -> list[int]:
  """Return the axes of the first array."""
  return dims(arrays(shape)[0][1])


def _dot(instruction: Instruction, defined: Mapping[str, Instruction], contracting: re.Match[str] | None) -> int:
  """Return 2 for each value of the result and of the contracted axes."""
  left = _sizes(defined[instruction.operands[0]].shape)
  axes = [int(axis) for axis in re.findall(r"\d+", contracting[1])] if contracting else []
  return 2 * math.prod(_sizes(instruction.shape)) * math.prod(left[axis] for axis in axes)


def _convolution(instruction: Instruction, defined: Mapping[str, Instruction]) -> int:
  """Return 2 for each value of the result, input channel and tap, without the taps on padding."""
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
  """Return the number of pairs of an output position and a tap that meet an input."""
  at = np.arange(out)[:, None] * stride + np.arange(kernel)[None] * dilation - low
  return int(np.count_nonzero((at >= 0) & (at % spread == 0) & (at // spread < size)))


Events = list[list[Any]]
INDEX = re.compile(r"index=(\d+)")


class InstructionSchedule(NamedTuple):
  """Of one program, on one device."""

  events: Events
  collectives: list[Collective]  # by id


def read(text: str, mesh: Mesh) -> InstructionSchedule:
  """Return the schedule of an executable. text: its `as_text`."""
  reader = _Reader(parse(text), mesh)
  return InstructionSchedule(reader.events(reader.program.entry), reader.collectives)


def flop(events: Events) -> float:
  """Return the FLOP of products and convolutions, those in loops as often as these run."""
  return sum(
    _times(event, flop) if event[0] == "loop" else event[1] for event in events if event[0] in ("work", "loop")
  )


def sent_bytes(events: Events) -> float:
  """Return the bytes that are read from and written to memory, likewise; those of the collectives left out."""
  counted = {"work": lambda event: event[2], "copy": lambda event: event[1], "loop": lambda e: _times(e, sent_bytes)}
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
        if started := [ids[operand] for operand in each.operands if operand in ids]:
          out.append(["done", started[0]])
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
    record = collective(instruction, self._mesh)
    synchronous = '"is_sync":true' in instruction.attributes
    self.collectives.append(record._replace(starts=starts and not synchronous))
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
