"""The tables and verdicts of a dry run as text."""

from collections.abc import Sequence

from ddl.perf.hardware import Cluster
from ddl.perf.units import bytes_text, counted, percent, seconds_text
from experiments.dryrun.report import Figures, Row

MOST_ROWS = 8  # collectives of one algorithm that are told each
SMALL = 0.01  # share of a step below which an exposed collective is not worth a word


def summary(found: Sequence[Figures], cluster: Cluster | None) -> str:
  """A line for each algorithm: memory, work, and what is exposed and hidden."""
  head = ["per device", "memory", "arguments", "temporary", "FLOP/step", "bytes/step", "sent/step"]
  head += ["compute", "exposed", "hidden", "step", "cost model"] if cluster else []
  rows = [head]
  for each in found:
    if each.refused:
      rows.append([each.label, f">= {bytes_text(each.peak)}", *["-"] * (len(head) - 2)])
      continue
    row = [each.label, *map(bytes_text, (each.peak, each.arguments, each.temporary))]
    row += [f"{each.flop:.3g}", bytes_text(each.moved), bytes_text(each.sent)]
    times = (each.compute, each.exposed, each.hidden, each.seconds, each.predicted)
    rows.append(row + ([seconds_text(value) if value else "0" for value in times] if cluster else []))
  return aligned(rows)


def collectives(each: Figures, priced: bool) -> str:
  """A line for each kind of collective of one algorithm."""
  head = ["  collective", "times/step", "bytes", "group", "asynchronous", "products meanwhile"]
  rows = [head + (["link", "hidden"] if priced else [])]
  for row in each.rows[:MOST_ROWS]:
    one = row.collective
    group = f"{one.size} along {one.axis}" if one.axis else f"{one.size}"
    line = [f"  {one.kind}", f"{row.times:.3g}", bytes_text(one.nbytes), group]
    line += ["yes" if one.starts else "no", f"{row.products:.3g}" if one.starts else "-"]
    rows.append(line + ([seconds_text(row.link), _share(row)] if priced else []))
  left = each.rows[MOST_ROWS:]
  more = (
    f"\n  and {counted(len(left), 'smaller kind')} of {counted(round(sum(r.times for r in left)), 'collective')} a step"
  )
  return aligned(rows) + more * bool(left)


def verdict(each: Figures, cluster: Cluster) -> str:
  """What an algorithm hides, in a sentence."""
  total = each.exposed + each.hidden
  if each.refused:
    return f"{each.label}: not compiled, see below"
  if not total:
    return f"{each.label}: nothing is sent"
  share = f"{each.label} hides {percent(each.hidden / total)} of its communication"
  share += f" ({seconds_text(each.hidden) if each.hidden else '0'} of {seconds_text(total)} a step)"
  if each.exposed < SMALL * each.seconds:
    return f"{share}; waits take {percent(each.exposed / each.seconds)} of a step"
  first = max(each.rows, key=lambda row: row.times * (row.link - row.hidden))
  why = "that nothing runs beside" if not first.collective.starts else "that the compute beside it is too short for"
  waits = f"waits take {percent(each.exposed / each.seconds)} of a step, most for {_named(first)} {why}"
  return f"{share}; {waits}"


def too_large(each: Figures, limit: float, other: Figures | None, target: str) -> str:
  """What is too big, and what would fit, in a line."""
  kept = sum(each.parts.values())
  rest = {"gradients, activations and other temporaries": each.peak - kept}
  parts = {name: size for name, size in (each.parts | rest).items() if size > 0}
  biggest = sorted(parts, key=lambda name: -parts[name])[:3]
  told = ", ".join(f"{name} {bytes_text(parts[name])}" for name in biggest)
  needs = "at least " * each.refused + bytes_text(each.peak)
  line = f"{each.label} needs {needs} of a device's {bytes_text(limit)} on {target} ({told}): "
  ways = []
  if other:
    ways.append(f"--members={other.members} fits ({counted(other.workers, 'worker')}, {bytes_text(other.peak)} each)")
  if kept < limit:
    ways.append("or a smaller config.batch, config.microbatches above 1 or config.model.remat for the activations")
  return line + (", ".join(ways) or "no number of members up to 16 fits; a smaller model, or devices with more memory")


def aligned(rows: Sequence[Sequence[str]]) -> str:
  """Columns of equal width, the first to the left."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
  return "\n".join(line.rstrip() for line in lines)


def _share(row: Row) -> str:
  return percent(row.hidden / row.link) if row.link else "-"


def _named(row: Row) -> str:
  return f"the {row.collective.kind} of {bytes_text(row.collective.nbytes)}"
