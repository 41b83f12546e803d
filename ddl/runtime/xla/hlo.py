"""The text of a compiled program, read: its computations, instructions and collectives."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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
    return [name for found in CALLED.findall(self.attributes) for name in NAME.findall(found)]


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
    found = [match[1].lower() for each in inner if (match := CHAIN.search(each.attributes))]
    return found[0] if found else "step"


class Collective(NamedTuple):
  """One collective, as each device of its groups takes part in it."""

  kind: str  # one of KINDS
  nbytes: int  # of the whole array: what an all-reduce sums, an all-gather returns, a reduce-scatter takes
  size: int  # devices of a group
  axis: str  # of the mesh, along which these lie; "" for both
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
  entry, here = "", ""
  for line in text.splitlines():
    if (head := HEAD.match(line)) and not here:
      here, entry = head[2], head[2] if head[1] else entry
      computations[here] = []
    elif line.startswith("}"):
      here = ""
    elif match := NAMED.match(line):
      computations[here].append(_instruction(match[1], line[match.end() :]))
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
  """Devices by their place in the mesh; all of them where a line names none."""
  if found := LISTED.search(line) or PAIRS.search(line):
    return [[int(n) for n in part.split(",")] for part in re.findall(r"\{([\d,]+)\}", found[1])]
  if found := ALONG.search(line):
    return _along(*found.groups())
  if found := re.search(f"replica_groups={COUNTED.pattern}", line):
    return _counted(found).tolist()
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
