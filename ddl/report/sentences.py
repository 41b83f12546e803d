"""Sentences of a report: up to five findings, notes on individual algorithms, and the meaning of seconds."""

import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from ddl.names import pluralize
from ddl.report import formats, frames
from ddl.report.frames import Frames, Quantity
from ddl.report.reader import ComparisonRecord
from ddl.run.folder import change_text

Sentence = tuple[str, str]  # a subject and a text
FEW = 3  # maximum number of tied labels that are named
EARLY = "\N{DAGGER}"  # marks costs of a target that is reached before the first evaluation
FELL = "\N{DOUBLE DAGGER}"  # marks costs of a target that is met and missed again later
EARLY_TEXT = "Reached before the first evaluation"
FELL_TEXT = "Missed again at a later evaluation, by most of the seeds that had met the target"
DIFFERENT_SEEDS = "Not all labels have the same seeds"
CLAIMS = {"examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker"}
COUNTED = ("examples", "bytes_sent", "step")  # quantities that are counted ("times as many", not "as long")


def findings(tables: Frames) -> list[Sentence]:
  """Return at most five findings as (subject, text).

  They state which algorithms are best in examples, bytes, time and the target's metric, and how many pairs of
  algorithms do not differ significantly.
  """
  comparison, table = tables.comparison, tables.table
  if not (table["finished"] + table["reached"]).any():
    return [("Result", "No algorithm has a result.")]
  if comparison.disjoint:
    return [("Ranking", "none, as no seed is common to all labels.")]
  sentences = []
  if not tables.complete:
    rows = table[table["reached"] > 0].itertuples()
    partial = [f"{formats.named(row.label)} ({row.reached} of {row.seeds})" for row in rows]
    text = f"; with some seeds {formats.listed(partial, labels=False)}" if partial else ""
    goal = f"{comparison.goal} {formats.name(comparison.metric)}"
    sentences = [(goal, f"no algorithm reaches it with every seed{text}.")]
  for quantity in frames.headline_quantities(comparison):
    if parts := ranking_text(tables, quantity):
      sentences.append((claim(tables, quantity), f"{'; '.join(parts)}."))
  return [*sentences, *unsettled(tables)]


def headline(tables: Frames, quantity: Quantity) -> str:
  """Return a figure title that names the best algorithms by a quantity."""
  none = "no algorithm has a result" if quantity.is_score else "no algorithm reaches it with every seed"
  return f"{claim(tables, quantity)}: {[*ranking_text(tables, quantity), none][0]}"


def claim(tables: Frames, quantity: Quantity) -> str:
  """Return what the best algorithm by a quantity achieves, such as "Fewest examples to 95 %"."""
  comparison = tables.comparison
  if quantity.is_score:
    return f"{'Highest' if comparison.higher_is_better else 'Lowest'} final {quantity.title}"
  text = f"{CLAIMS.get(quantity.metric, 'Fastest')}{' in virtual time' * (quantity.metric == 'virtual_seconds')}"
  text += f" to {comparison.goal}"
  if quantity.cluster:
    text += f" on {quantity.cluster}"
  if quantity.metric == "bytes_sent" and tables.silent:
    text += " among those that send any"
  if quantity.metric == "seconds" and (hardware := hardware_of(comparison)):
    text += f" as measured with {hardware}"
  return text


def ranking_text(tables: Frames, quantity: Quantity) -> list[str]:
  """Return texts on the best algorithms by a quantity and on how another one compares; [] if none is ranked."""
  ranking = frames.ranking(tables, quantity)
  if not ranking.ranked:
    return []
  best, marks = [ranking.ranked[0], *ranking.rivals], {} if quantity.is_score else signs(tables)
  mean = dict(zip(tables.labels, tables.table[quantity.name], strict=True))
  figures = {label: formats.figure(quantity.metric, mean[label]) + marks.get(label, "") for label in best[:FEW]}
  named = [f"{formats.named(label)} ({figure})" for label, figure in figures.items()]
  names = formats.listed(named + [pluralize(len(best) - FEW, "other")] * (len(best) > FEW), labels=False)
  is_clear = len(best) <= FEW and len(best) < len(ranking.ranked)
  if ranking.rivals and not is_clear:
    return ["no clear winner", f"{names} do not differ significantly"]
  parts = [names + ", not significantly different" * bool(ranking.rivals)]
  others = [label for label in ranking.ranked if label not in best]
  baseline = [info["label"] for info in tables.comparison.infos if info["name"] == "sync_sgd"]
  has_baseline = len(baseline) == 1 and baseline[0] in others
  if has_baseline or (others and not ranking.rivals):
    parts.append(difference(tables, quantity, baseline[0] if has_baseline else others[0], best[0]))
  if not quantity.is_score and len(tables.complete) == 1 < len(tables.table):
    parts.append(f"no other algorithm reaches {tables.comparison.goal}{'' if tables.single else ' with every seed'}")
  return parts


def difference(tables: Frames, quantity: Quantity, label: str, best: str) -> str:
  """Compare an algorithm to the best one, as in "B takes 1.30 times as many (95 % interval 1.10 to 1.54)"."""
  pairs = frames.both_orders(tables, quantity)
  if (label, best) not in pairs.index:
    return f"{formats.named(label)} is not tested against it"
  pair = pairs.loc[(label, best)]
  is_below = pair["estimate"] < 0 and pair["scale"] == "difference"
  values = [pair["estimate"], *((pair["high"], pair["low"]) if is_below else (pair["low"], pair["high"]))]
  mean, low, high = (formats.estimate(quantity.metric, pair["scale"], -x if is_below else x) for x in values)
  text = f"{formats.named(label)} takes {mean} more"
  if pair["scale"] == "ratio":
    text = f"{formats.named(label)} takes {mean} times as {'many' if quantity.metric in COUNTED else 'long'}"
  elif quantity.is_score:
    text = f"{formats.named(label)} is {mean} {'lower' if is_below else 'higher'}"
  if math.isnan(pair["low"]):
    return text + " in the only seed" * tables.single
  return f"{text} (95 % interval {low} to {high}{'' if pair['verdict'] else ', not significant'})"


def unsettled(tables: Frames) -> list[Sentence]:
  """Count the pairs that do not differ significantly, and name the one that needs the fewest additional seeds."""
  if tables.single:
    text = "there are no intervals or significance tests; another seed may give a different order."
    return [("One seed only", text)] if len(tables.table) > 1 else []
  titles = {quantity.metric: quantity.title for quantity in frames.headline_quantities(tables.comparison)}
  tested = tables.pairs[tables.pairs["quantity"].isin(titles)].dropna(subset="p")
  alike, sizes = tested[~tested["significant"].astype(bool)], tested["quantity"].value_counts()
  if not len(alike):
    return []
  counts = alike["quantity"].value_counts(sort=False).items()
  text = formats.listed([f"{count} of {sizes[name]} in {titles[name]}" for name, count in counts], labels=False)
  separable = alike[alike["more_seeds_capped"].eq(False).fillna(False)]
  if len(separable):
    pair = separable.loc[separable["more_seeds"].astype(int).idxmin()]
    text += f"; {pluralize(pair['more_seeds'], 'more seed')} would separate "
    text += f"{formats.listed([pair['first'], pair['second']])} in {titles[pair['quantity']]}, at the observed spread"
  return [("Pairs without a significant difference", f"{text}.")]


def expected(tables: Frames) -> list[Sentence]:
  """Compare the expected pairs (faster, slower) of config.compare.expected with the results."""
  pairs = tables.comparison.info["expected"]
  if not pairs:
    return []
  orders = _by_key((order(tables, *pair), f"{pair[0]} before {pair[1]}") for pair in pairs)
  words = {-1: "", 1: "reversed: ", 0: "not significantly different: "}
  texts = [word + formats.listed(orders[sign], 20) for sign, word in words.items() if sign in orders]
  subject = f"{len(orders.get(-1, []))} of {len(pairs)} expected orderings"
  subject += f" in {formats.name(tables.comparison.seconds)} were confirmed"
  return [(f"{subject}{' in the only seed, without a test' * tables.single}", "; ".join(texts) + ".")]


def order(tables: Frames, first: str, second: str) -> int:
  """Return -1 if the first algorithm reaches the target significantly sooner, 1 if the second does, else 0.

  An algorithm that reaches it with every seed is sooner than one that never does.
  """
  reached, complete = dict(zip(tables.labels, tables.table["reached"], strict=True)), tables.complete
  if first in complete and second in complete:
    tests = frames.both_orders(tables, frames.costs(tables.comparison)[-1])["verdict"]
    return tests.get((first, second)) or 0
  if first in complete and reached.get(second) == 0:
    return -1
  return int(second in complete and reached.get(first) == 0)


def signs(tables: Frames) -> dict[str, str]:
  """Map each algorithm label to the marks (EARLY, FELL) to append to its costs."""
  rows = tables.table.itertuples()
  return {row.label: EARLY * (row.early > 0) + FELL * (2 * row.fell_back > row.reached) for row in rows}


def marked_labels(tables: Frames) -> list[tuple[str, str, str]]:
  """Return (mark, meaning, text on the algorithms with the mark) for each mark of costs that is in use."""
  early = "the cost is mostly interpolated, from the untrained start; decrease config.eval_every."
  marks = (EARLY, EARLY_TEXT, "early", early), (FELL, FELL_TEXT, "fell_back", "costs are those of the first crossing.")
  signs_of, marked = signs(tables), []
  for sign, meaning, column, text in marks:
    rows = [row for row in tables.table.to_dict("records") if sign in signs_of[row["label"]]]
    counts = [f" ({row[column]} of {row['seeds']} seeds)" * (row[column] < row["seeds"]) for row in rows]
    labels = [formats.named(row["label"]) + count for row, count in zip(rows, counts, strict=True)]
    if labels:
      marked.append((sign, meaning, f"{formats.listed(labels, labels=False)}; {text}"))
  return marked


def failures(tables: Frames) -> list[str]:
  """Return sentences on input files that changed and on runs that failed."""
  texts = list(map(change_text, tables.comparison.info.get("changed_inputs", [])))
  for info in tables.comparison.infos:
    failed = tables.runs[(tables.runs["label"] == info["label"]) & (tables.runs["problem"] != "")]
    problems = [f"seed {seed} {problem}" for seed, problem in zip(failed["seed"], failed["problem"], strict=True)]
    texts += [f"{info['label']}: {text}." for text in [info["failed"], *problems] if text]
  return texts


def notes(tables: Frames) -> list[str]:
  """Return sentences on marks and on the meaning of seconds."""
  return [*(f"{sign} {meaning}: {text}" for sign, meaning, text in marked_labels(tables)), clock(tables.comparison)]


def _by_key(pairs: Iterable[tuple[Any, str]]) -> dict[Any, list[str]]:
  """Group texts by key, in the order of the keys' first occurrences."""
  texts: dict[Any, list[str]] = {}
  for key, text in pairs:
    texts.setdefault(key, []).append(text)
  return texts


def different_seeds(comparison: ComparisonRecord) -> list[Sentence]:
  """Return a sentence on the seeds of each algorithm and the command to train missing ones; [] if seeds are equal."""
  requested = comparison.different_seeds
  if not requested:
    return []
  groups = _by_key((tuple(seeds), label) for label, seeds in requested.items())
  present = "; ".join(f"{formats.listed(labels, 6)}: {_numbers(seeds)}" for seeds, labels in groups.items())
  used = f"results, ranks and tests use only {_numbers(comparison.info['seeds'])}, which all labels have"
  if comparison.disjoint:
    used = "no seed is common to all labels, so they are not ranked"
  wanted = ",".join(map(str, sorted(set().union(*requested.values()))))
  command = f"python run.py compare --resume --workdir={shlex.quote(str(comparison.folder))}"
  return [(DIFFERENT_SEEDS, f"{present}; {used}. `{command} --config.compare.seeds={wanted}` trains the missing ones.")]


def _numbers(seeds: Sequence[int]) -> str:
  word = "seed" if len(seeds) == 1 else "seeds"
  return f"{word} {formats.listed(list(map(str, seeds)))}" if seeds else "none"


def clock(comparison: ComparisonRecord) -> str:
  """Return a sentence on the meaning of seconds: virtual, or measured on this hardware."""
  if comparison.virtual:
    groups = _by_key((info["virtual"].rstrip("."), info["label"]) for info in comparison.infos)
    texts = [f"{text}{f' ({formats.listed(labels)})' * (len(groups) > 1)}" for text, labels in groups.items()]
    return f"Seconds are virtual, not measured: {'; '.join(texts)}."
  hardware, layouts = hardware_of(comparison), comparison.layouts
  text = f" with {hardware}" * bool(hardware)
  text += ", without network traffic" * (bool(layouts) and all(layout["processes"] == 1 for layout in layouts))
  together = max((layout.get("together", 1) for layout in layouts), default=1)
  text += f"; up to {together} seeds share a program, so intervals of their seconds are too narrow" * (together > 1)
  others = "see the section on other clusters" if comparison.clusters else "use compare --cluster=... for predictions"
  return f"Seconds are measured{text}; they do not rank the algorithms on a cluster ({others})."


def hardware_of(comparison: ComparisonRecord) -> str:
  """Describe the numbers of workers and devices; "" if unknown."""
  layouts = comparison.layouts
  if not layouts:
    return ""
  devices = sorted({layout["devices"] for layout in layouts})
  workers = formats.between([layout["workers"] for layout in layouts], "worker")
  return f"{workers} on {' or '.join(map(str, devices))} device{'s' * (devices != [1])}"


def method(tables: Frames) -> str:
  """Return a sentence on how intervals and tests are computed."""
  if tables.single:
    return "There is only one seed, so there are no intervals and tests, and any difference may be due to chance."
  cut = ", cut at 0 and 100 %" if formats.is_share(tables.comparison.metric) else ""
  few = " With two seeds they mean little." if max(tables.table["seeds"]) == 2 else ""
  return (
    f"Intervals are 95 % (Student's t{cut}; on logarithms for costs); tests are t-tests paired by seed with Holm's "
    f"correction.{few}"
  )


def caveats(tables: Frames) -> list[Sentence]:
  """Return sentences on runs that stop at the target, on different seeds and on expected orderings."""
  text = "each run stops at the first evaluation that meets the target, so final metrics are not compared."
  stops = [("Runs stop at the target", text)] * tables.comparison.stops
  return stops + different_seeds(tables.comparison) + expected(tables)
