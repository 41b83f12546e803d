"""The table of a comparison as text, and the sentences that explain it on the page as well."""

import textwrap
from collections.abc import Sequence

from ddl.names import text, words
from ddl.report import formats
from ddl.report.cells import Cell, column
from ddl.report.reader import Comparison
from ddl.report.seeds import APART, apart, own_seeds, seed_column
from ddl.report.settings import varying
from ddl.report.table import EARLY, FELL, LabelRow, scores, spent
from ddl.run.folder import change_text

WIDTH = 100
LABEL = 16  # characters of a label that a wide table keeps
TESTED = (
  "Of a grid, two algorithms are tested at the same point, and two points of one algorithm where they differ in one "
  "key: these pairs are one family of Holm's correction for each quantity."
)
BEFORE = "Reached before the first evaluation"
AGAIN = "Met, and missed again at a later evaluation, by the mean over the seeds that met it or by each of them"
CUT = ", cut at 0 and 100 %, which no mean can pass"
BEST = "the best mean of its column, where several are ranked"
MARKS = f"*: {BEST}; ~: not significantly worse"
TIED = "no algorithm is significantly better."
OF_GRID = (
  "tested with the best mean, or as good as it, and no point that it is tested with is significantly better. A point "
  "that no test compares with the best has no mark, which says nothing of it."
)
UNTESTED = (
  "A pair has no test where one of the two lacks the figure of a seed: the seeds that have it are selected by the "
  "outcome. Then the files have the mean difference over the seeds that both have, as a description."
)


def tied(comparison: Comparison) -> str:
  """The meaning of the mark beside the best."""
  return OF_GRID if comparison.info["grid"] else TIED


def legend(comparison: Comparison) -> list[str]:
  """Sentences on the meaning of the figures."""
  seeds = max((len(each.info["runs"]) for each in comparison.results), default=1)
  over = formats.between([len(each.info["runs"]) for each in comparison.results], "seed")
  if seeds == 1:
    sentences = ["One seed: no interval and no spread, so that any difference may be due to chance."]
  else:
    names = formats.listed([formats.NAMES[name] for name in scores(comparison)]).capitalize()
    sentences = [
      f"{names}: mean and 95 % confidence interval over {over} "
      f"(Student's t{CUT if comparison.metric == 'test_accuracy' else ''}). Costs: geometric mean and 95 % interval of "
      "the logarithm, which is above zero as costs are.",
      "Seeds are paired (same start and same order of the data for all algorithms), so that the test is of the "
      "differences within seeds, which may be significant although two intervals overlap.",
      "Two algorithms are significantly different where the paired t-test over seeds (of costs: of their logarithms, "
      "so of the ratio) has p below 5 % after Holm's correction for all tested pairs of algorithms in the column. "
      + UNTESTED,
    ]
  if seeds > 1 and comparison.info["grid"]:
    sentences.append(TESTED)
  if seeds == 2:
    sentences.append(
      "An interval over two seeds has little meaning, and a test finds next to nothing: Student's t has one degree of "
      "freedom there."
    )
  sentences.append(
    f"Steps, examples, bytes and seconds are those spent when the curve first meets {comparison.goal}, interpolated "
    "linearly between the evaluations before and after."
  )
  sentences.append(
    "Examples count all workers together, bytes are those sent per worker"
    + (
      ", see the section on the algorithms for what and when."
      if any(each.info["sends"] for each in comparison.results)
      else "."
    )
  )
  if not comparison.virtual:
    return sentences + clock(comparison)
  groups: dict[str, list[str]] = {}  # labels by the components of their virtual time
  for result in comparison.results:
    groups.setdefault(result.info["virtual"].rstrip("."), []).append(result.info["label"])
  texts = [text + (f" ({formats.listed(labels)})" if len(groups) > 1 else "") for text, labels in groups.items()]
  return [*sentences, f"Seconds are virtual, not measured: {'; '.join(texts)}."]


def early(comparison: Comparison, table: Sequence[LabelRow]) -> str:
  """What costs are worth that were spent before the first evaluation; "" where there are none."""
  found: dict[float, list[str]] = {}  # labels by the examples of the first evaluation
  for row in table:
    if row.early:
      some = f" ({row.early} of {row.seeds} seeds)" if row.early < row.seeds else ""
      found.setdefault(row.first, []).append(formats.named(row.label) + some)
  if not found:
    return ""
  at = "; ".join(
    f"{formats.listed(labels, labels=False)}, at {formats.figure('examples', first)} examples"
    for first, labels in found.items()
  )
  return (
    f"{at}. What reaching {comparison.goal} cost is a line from the untrained start to that evaluation there, mostly "
    "invented, and so is the order of such costs; evaluate more often: config.eval_every."
  )


def fell_back(comparison: Comparison, table: Sequence[LabelRow]) -> str:
  """Whose mean curve does not keep the target; "" where all do."""
  labels = [formats.named(row.label) + f" ({row.fell_back})" * (row.seeds > 1) for row in table if row.mean_fell_back]
  if not labels:
    return ""
  seeds = "in brackets the number of seeds that do by themselves; " * any(row.seeds > 1 for row in table)
  told = formats.listed(labels, labels=False)
  return f"{told}; {seeds}the costs are of the first time that each seed meets {comparison.goal}."


def footnotes(comparison: Comparison, table: Sequence[LabelRow]) -> list[str]:
  """Sentences on single rows of the table."""
  told = {f"{EARLY} {BEFORE}": early(comparison, table), f"{FELL} {AGAIN}": fell_back(comparison, table)}
  notes = [f"{sign}: {text}" for sign, text in told.items() if text]
  in_part: dict[str, list[str]] = {}  # labels by what they send, where some of the workers do at a time
  for each in comparison.results:
    sends = each.info["sends"] or ""
    if formats.SAMPLED in sends or (each.info["taxonomy"]["pattern"] == "round robin" and sends):
      in_part.setdefault(sends, []).append(each.info["label"])
  same: dict[str, list[str]] = {}  # labels by the first with the same runs
  for row in table:
    same.setdefault(row.same or row.label, []).append(row.label)
  if twins := [formats.listed(labels, 6) for labels in same.values() if len(labels) > 1]:
    notes.append(f"The same at every evaluation, so that no test is between them: {'; '.join(twins)}.")
  notes += [f"Bytes of {formats.listed(labels, 6)}: {sends}." for sends, labels in in_part.items()]
  notes += [change_text(each) for each in comparison.info.get("changed_inputs", [])]
  return notes + [f"{row.label}: {note}." for row in table for note in row.notes]


def clock(comparison: Comparison) -> list[str]:
  """Sentences on measured seconds, which are of the hardware that ran all workers, not of a cluster."""
  where = layout(comparison)
  if where:
    layouts = [each for result in comparison.results for each in result.layouts]
    per_device = sorted({each.workers // each.devices for each in layouts})
    each = f"{' or '.join(map(str, per_device))} worker{'s' * (per_device[-1] > 1)} per device"
    where = f": {where}" + f", {each}" * (per_device != [1])
    where += ", and no message crossed a network" * all(each.processes == 1 for each in layouts)
    together = max(each.together for each in layouts)
    where += f"; up to {together} seeds ran side by side, and share their seconds" * (together > 1)
  others = "the section on other clusters has" if comparison.info.get("clusters") else "compare --cluster=... adds"
  return [
    f"Seconds were measured on the hardware that ran this, without compilation and evaluation{where}.",
    f"They rank the algorithms there, not on a cluster; {others} predictions for clusters.",
  ]


def layout(comparison: Comparison) -> str:
  """Return the numbers of workers and of their devices as text, "" where they are not known."""
  layouts = [each for result in comparison.results for each in result.layouts]
  if not layouts:
    return ""
  devices = sorted({each.devices for each in layouts})
  workers = formats.between([each.workers for each in layouts], "worker")
  return f"{workers} on {' or '.join(map(str, devices))} device{'s' * (devices != [1])}"


def text_table(comparison: Comparison, table: Sequence[LabelRow]) -> str:
  """The table for a terminal, and the sentences below it."""
  key = f"In brackets: the mean of the seeds that met the target alone, unranked. *: {BEST}. ~: "
  told = [f"{APART}: {apart(comparison)}"] if own_seeds(comparison) else []
  paragraphs = [*told, " ".join([*legend(comparison), key + tied(comparison)]), *footnotes(comparison, table)]
  head, rule, *lines = text_lines(comparison, table)
  return "\n".join([head, rule, *lines, rule, *(textwrap.fill(each, WIDTH) for each in paragraphs)])


def text_lines(comparison: Comparison, table: Sequence[LabelRow]) -> list[str]:
  """A head, a rule and a line per row, at most 100 columns; for the marks see MARKS."""
  columns = _point_columns(comparison) or varying(comparison.info)
  labels = [row.place.group if columns and comparison.info["grid"] else row.label for row in table]
  columns |= seed_column(comparison)
  metric, *others = scores(comparison)
  columns |= {formats.NAMES[metric]: column(table, metric)}
  columns |= {name.removeprefix("test_"): column(table, name, intervals=False) for name in others}
  heads = ("steps", "examples", "bytes sent", "virtual s" if comparison.virtual else "seconds")
  columns |= {head: column(table, name, intervals=False) for head, name in zip(heads, spent(comparison), strict=True)}
  reached = [f"{row.reached}/{row.seeds} reached" if row.finished or row.reached else "no result" for row in table]
  lines = [["algorithm", *columns, f"to {comparison.goal}"]]
  lines += map(list, zip(labels, *map(_marked, columns.values()), reached, strict=True))
  widths = [max(map(len, each)) for each in zip(*lines, strict=True)]
  widths[0] = min(widths[0], max(LABEL, WIDTH - sum(widths[1:]) - 2 * len(widths[1:])))
  texts = []
  for label, *rest in lines:
    label = label if len(label) <= widths[0] else label[: widths[0] - 2] + ".."
    texts.append("  ".join([label.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))
  return [texts[0], "-" * len(texts[0]), *texts[1:]]


def _point_columns(comparison: Comparison) -> dict[str, list[Cell]]:
  """The keys of the grid that have several values, without their sections, so that labels need not be read whole."""
  points, keys = [result.info["point"] for result in comparison.results], list(comparison.info["grid"])
  found = {words(key, keys): [text(point[key]) if key in point else "-" for point in points] for key in keys}
  return {word: list(map(Cell, texts)) for word, texts in found.items() if len(set(texts)) > 1}


def _marked(cells: Sequence[Cell]) -> list[str]:
  """Cells as text, with a mark behind the figure."""
  texts = [f"({cell.text})" if cell.details else "-" if cell.kind == "partial" else cell.text for cell in cells]
  return [text + {"best": "*", "tied": "~"}.get(cell.kind, " ") for text, cell in zip(texts, cells, strict=True)]
