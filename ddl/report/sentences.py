"""The findings of a comparison as up to five sentences, and notes on how to read its tables."""

import math
import shlex
from collections.abc import Sequence

from ddl.names import pluralize
from ddl.report import formats, frames
from ddl.report.frames import Frames, Quantity
from ddl.report.reader import ComparisonRecord, seed_of
from ddl.report.statistics import LEVEL, MOST, detectable
from ddl.run.folder import change_text

Sentence = tuple[str, str]  # a subject, and what is found
FEW = 3  # labels that a tie names with their figures
EARLY = "\N{DAGGER}"  # behind costs of reaching the target before the first evaluation
FELL = "\N{DOUBLE DAGGER}"  # behind costs of a target that is met, and missed again later
EARLY_TEXT = "Reached before the first evaluation"
FELL_TEXT = "Met, and missed again at a later evaluation, by the mean over the seeds that met it or by each of them"
APART = "Not all labels have the same seeds"
CLAIMS = {
  "examples": "Fewest examples", "bytes_sent": "Fewest bytes per worker", "seconds": "Fastest",
  "virtual_seconds": "Fastest in virtual time",
}  # fmt: skip


def findings(tables: Frames) -> list[Sentence]:
  """Return at most five sentences: who is best in examples, bytes, time and the metric, and what is not settled."""
  comparison = tables.comparison
  if not (tables.table["finished"] + tables.table["reached"]).any():
    return [("Result", "No algorithm has a result.")]
  if comparison.disjoint:
    return [("Ranking", "none: no seed is common to all labels.")]
  goal, complete = comparison.goal, tables.complete
  sentences = []
  if not complete:
    some = tables.table[tables.table["reached"] > 0].to_dict("records")
    partial = [f"{formats.named(line['label'])} ({line['reached']} of {line['seeds']})" for line in some]
    text = f"; with some seeds {formats.listed(partial, labels=False)}" if partial else ""
    sentences = [(f"{goal} {formats.NAMES[comparison.metric]}", f"no algorithm reaches it with every seed{text}.")]
  for quantity in frames.costs(comparison)[1:]:
    ranking = frames.ranking(tables, quantity, complete)
    if not ranking.ranked:
      continue
    claim = f"{CLAIMS[quantity.metric]} to {goal}"
    if quantity.metric == "bytes_sent" and len(ranking.ranked) < len(complete):
      claim += ", of those that send any"
    if quantity.metric == "seconds" and (where := layout(comparison)):
      claim += f" as measured with {where}"
    text = claim_text(tables, quantity, ranking)
    if len(complete) == 1 and len(tables.table) > 1:
      text = f"{text[:-1]}; no other reaches {goal}{'' if tables.single else ' with every seed'}."
    sentences.append((claim, text))
  quantity = frames.scores(comparison)[0]
  ranking = frames.ranking(tables, quantity)
  if ranking.ranked:
    word = "Highest" if comparison.higher_is_better else "Lowest"
    sentences.append((f"{word} final {quantity.title}", claim_text(tables, quantity, ranking)))
  return [*sentences, *unsettled(tables)]


def claim_text(tables: Frames, quantity: Quantity, ranking: frames.Ranking) -> str:
  """Return the best label and its difference from others, or those that do not differ significantly from it."""
  tied = [ranking.ranked[0], *ranking.rivals]
  figures = [f"{formats.named(label)} ({_figure(tables, quantity, label)})" for label in tied[:FEW]]
  names = formats.listed(figures + [pluralize(len(tied) - FEW, "other")] * (len(tied) > FEW), labels=False)
  if ranking.rivals and not is_short(ranking):
    return f"no clear winner; {names} do not differ significantly."
  text = f"{names}, not significantly different" if ranking.rivals else names
  others = [label for label in ranking.ranked if label not in tied]
  baseline = _baseline(tables)
  if baseline in others and (saving := _saving(tables, quantity, tied[0], baseline)):
    text += f"; {formats.named(tied[0])} takes {saving}" if ranking.rivals else f", {saving}"
  elif others and not ranking.rivals:
    text += f"; {next_one(tables, quantity, others[0], tied[0])}"
  untested = f"; no test with {pluralize(len(ranking.unjudged), 'other')}" if ranking.unjudged else ""
  return f"{text}{untested}."


def is_short(ranking: frames.Ranking) -> bool:
  """Return whether those level with the best are few, and others are significantly worse."""
  level = 1 + len(ranking.rivals)
  return level <= FEW and level + len(ranking.unjudged) < len(ranking.ranked)


def headlines(tables: Frames) -> list[str]:
  """Return who is best in examples, bytes, time and the metric, in a few words."""
  told = [*frames.costs(tables.comparison)[1:], frames.scores(tables.comparison)[0]]
  return list(dict.fromkeys(headline(tables, quantity) for quantity in told))


def headline(tables: Frames, quantity: Quantity) -> str:
  """Return who is best in a quantity, for the title of a figure."""
  goal = tables.comparison.goal
  ranking = frames.ranking(tables, quantity, None if quantity.is_score else tables.complete)
  if not ranking.ranked:
    return f"No algorithm {'has a result' if quantity.is_score else f'reaches {goal} with every seed'}"
  if ranking.rivals and not is_short(ranking):
    return f"No clear winner in {f'final {quantity.title}' if quantity.is_score else f'{quantity.title} to {goal}'}"
  best = [ranking.ranked[0], *ranking.rivals]
  names, one = formats.listed(best), len(best) == 1
  figure = " to ".join(dict.fromkeys(_figure(tables, quantity, label) for label in (best[0], best[-1])))
  if quantity.is_score:
    word = "highest" if quantity.metric == "test_accuracy" else "lowest"
    return f"{names} end{'s' * one} with the {word} {quantity.title} ({figure})"
  claims = {"examples": "with the fewest examples", "bytes_sent": "with the fewest bytes"}
  if len(tables.complete) == 1:
    only = "Only " * (len(tables.table) > 1)
    return f"{only}{names} reaches {goal}, after {figure}{' examples' * (quantity.metric == 'examples')}"
  return f"{names} reach{'es' * one} {goal} {claims.get(quantity.metric, 'first')} ({figure})"


def _figure(tables: Frames, quantity: Quantity, label: str) -> str:
  mean = tables.table.set_index("label").loc[label, quantity.name]
  return formats.figure(quantity.unit, mean) + ("" if quantity.is_score else signs(tables).get(label, ""))


def _baseline(tables: Frames) -> str:
  """Return the label of synchronous SGD, "" for none or several."""
  names = [result.info["label"] for result in tables.comparison.results if result.info["name"] == "sync_sgd"]
  return names[0] if len(names) == 1 else ""


def _saving(tables: Frames, quantity: Quantity, best: str, baseline: str) -> str:
  """Return how much less of a cost the best takes than the baseline; "" where that is not significant."""
  pair = frames.pair(tables, quantity, best, baseline)
  if quantity.is_score or pair is None or pair["significant"] is not True or pair["scale"] != "ratio":
    return ""
  less = "fewer" if quantity.metric in ("examples", "bytes_sent") else "less"
  if pair["estimate"] > 0.5:
    return f"{100 * (1 - pair['estimate']):.0f} % {less} than {baseline}"
  return f"{100 * pair['estimate']:.2g} % of {baseline}'s"


def next_one(tables: Frames, quantity: Quantity, label: str, best: str) -> str:
  """Return the difference of the second of a ranking from the best one: "B, the next, takes 1.30 times as many"."""
  subject = f"{formats.named(label)}, the next,"
  pair = frames.pair(tables, quantity, label, best)
  if pair is None:
    return f"{subject} is not tested against it"
  mean, ends = pair["estimate"], (pair["low"], pair["high"])
  if pair["scale"] == "ratio":
    mean_text, *end_texts = (f"{value:,.{formats.decimals(value, 3)}f}" for value in (mean, *ends))
    text = f"takes {mean_text} times as {'many' if quantity.metric in ('examples', 'bytes_sent', 'step') else 'long'}"
  else:
    values = (mean, *ends) if mean >= 0 else (-mean, -ends[1], -ends[0])
    mean_text, *end_texts = (formats.figure(quantity.unit, value).replace(" %", " points") for value in values)
    text = f"is {mean_text} {'higher' if mean > 0 else 'lower'}" if quantity.is_score else f"takes {mean_text} more"
  if math.isnan(pair["low"]):
    return f"{subject} {text}" + " in the one seed" * tables.single
  doubt = "" if pair["significant"] is True else ", not significant"
  return f"{subject} {text} (95 % interval {end_texts[0]} to {end_texts[1]}{doubt})"


def unsettled(tables: Frames) -> list[Sentence]:
  """Return what the tests leave open: the significant pairs of each quantity, and which needs the fewest more seeds."""
  if tables.single:
    text = "no interval and no test of significance; another seed may give another order."
    return [("One seed only", text)] if len(tables.table) > 1 else []
  counts, nearest = [], []
  for quantity in (frames.scores(tables.comparison)[0], *frames.costs(tables.comparison)[1:]):
    pairs = frames.of_quantity(tables.pairs, quantity)
    tested = pairs[pairs["p"].notna()]
    alike = tested[~tested["significant"].astype(bool)]
    if len(alike):
      counts.append(f"{len(alike)} of {len(tested)} in {quantity.title}")
      nearest += [
        (line["more_seeds"], formats.listed([line["first"], line["second"]]), quantity.title)
        for line in alike[alike["more_seeds"].notna() & (alike["more_seeds"] <= MOST)].to_dict("records")
        if not line["more_seeds_capped"]
      ]
  if not counts:
    return []
  text = f"{formats.listed(counts, labels=False)}"
  if nearest:
    count, labels, title = min(nearest)
    text += f"; {pluralize(count, 'more seed')} would separate {labels} in {title}, at the spread seen here"
  return [("Pairs without a significant difference", f"{text}.")]


def expected(tables: Frames) -> list[Sentence]:
  """Compare the pairs of config.compare.expected, (sooner, later) at the target, with the results."""
  pairs = tables.comparison.info["expected"]
  if not pairs:
    return []
  verdicts: dict[int, list[str]] = {-1: [], 1: [], 0: []}
  for sooner, later in pairs:
    verdicts[order(tables, sooner, later)].append(f"{sooner} before {later}")
  words = {-1: "", 1: "the other way round: ", 0: "not significantly different: "}
  texts = [words[sign] + formats.listed(names, 20) for sign, names in verdicts.items() if names]
  single = " in the one seed, which shows no spread" if tables.single else ""
  subject = (
    f"{len(verdicts[-1])} of {len(pairs)} expected orderings in {formats.NAMES[tables.comparison.seconds]} came out"
  )
  return [(f"{subject}{single}", "; ".join(texts) + ".")]


def order(tables: Frames, first: str, second: str) -> int:
  """Return -1 where the first is sooner at the target, 1 where the second is, 0 where that is not settled."""
  lines = {line["label"]: line for line in tables.table.to_dict("records")}
  if first not in lines or second not in lines:
    return 0
  complete = tables.complete
  if first in complete and second in complete:
    return frames.verdicts(tables, frames.costs(tables.comparison)[-1]).get((first, second)) or 0
  if first in complete and not lines[second]["reached"]:
    return -1
  return int(second in complete and not lines[first]["reached"])


def signs(tables: Frames) -> dict[str, str]:
  """Return the marks behind a label's costs of the target."""
  runs = tables.runs.groupby("label")[["early", "label_fell_back"]].any()
  return {label: EARLY * bool(line.early) + FELL * bool(line.label_fell_back) for label, line in runs.iterrows()}


def notes(tables: Frames) -> list[str]:
  """Return sentences on single labels: their marks and failures; and what seconds are."""
  comparison = tables.comparison
  texts = [f"{sign} {meaning}: {text}" for sign, meaning, text in marked_labels(tables)]
  same: dict[str, list[str]] = {}  # labels by the first with the same runs
  for label, first in dict(zip(tables.runs["label"], tables.runs["same"], strict=True)).items():
    same.setdefault(first or label, []).append(label)
  if twins := [formats.listed(labels, 6) for labels in same.values() if len(labels) > 1]:
    texts.append(f"The same at every evaluation, so not tested against each other: {'; '.join(twins)}.")
  sampled: dict[str, list[str]] = {}
  for info in (result.info for result in comparison.results):
    sends = info["sends"] or ""
    if formats.SAMPLED in sends or (info["taxonomy"]["pattern"] == "round robin" and sends):
      sampled.setdefault(sends, []).append(info["label"])
  texts += [f"Bytes of {formats.listed(labels, 6)}: {sends}." for sends, labels in sampled.items()]
  texts += [change_text(change) for change in comparison.info.get("changed_inputs", [])]
  for result in comparison.results:
    runs = tables.runs[(tables.runs["label"] == result.info["label"]) & (tables.runs["problem"] != "")]
    problems = [f"{run}: {text}" if text == "no metrics" else f"{run} {text}"
                for run, text in sorted(zip(runs["run"], runs["problem"], strict=True),
                                        key=lambda line: line[1] != "no metrics")]  # fmt: skip
    texts += [f"{result.info['label']}: {text}." for text in [result.info["failed"], *problems] if text]
  return texts + clock(comparison)


def marked_labels(tables: Frames) -> list[tuple[str, str, str]]:
  """Return the marks of costs, their meanings, and the labels that have them."""
  runs, seeds = tables.runs, dict(zip(tables.table["label"], tables.table["seeds"], strict=True))
  marked = []
  if runs["early"].any():
    by_examples: dict[float, list[str]] = {}
    for label, early in runs[runs["early"].astype(bool)].groupby("label", sort=False):
      some = f" ({len(early)} of {seeds[label]} seeds)" if len(early) < seeds[label] else ""
      by_examples.setdefault(early["first"].max(), []).append(formats.named(str(label)) + some)
    labels = "; ".join(
      f"{formats.listed(names, labels=False)}, at {formats.figure('examples', first)} examples"
      for first, names in by_examples.items()
    )
    advice = "the cost is interpolated from the untrained start and mostly invented; evaluate more often: "
    marked.append((EARLY, EARLY_TEXT, f"{labels}; {advice}config.eval_every."))
  if runs["label_fell_back"].any():
    fell = runs[runs["label_fell_back"].astype(bool)].groupby("label", sort=False)["fell_back"].sum()
    labels = [formats.named(str(label)) + f" ({count})" * (seeds[label] > 1) for label, count in fell.items()]
    several = "in brackets the number of seeds that do; " if any(seeds[label] > 1 for label in fell.index) else ""
    text = f"{formats.listed(labels, labels=False)}; {several}costs are of the first time."
    marked.append((FELL, FELL_TEXT, text))
  return marked


def seed_counts(comparison: ComparisonRecord) -> dict[str, int]:
  """Return the number of seeds of each label; {} where all have the same seeds."""
  whole = comparison.whole or comparison
  if not (comparison.whole or whole.disjoint):
    return {}
  return {label: len(runs) for label, runs in whole.seeds.items()}


def seeds_text(comparison: ComparisonRecord) -> str:
  """Return the number of seeds for a heading."""
  if comparison.disjoint:
    counts = [len(runs) for runs in comparison.seeds.values() if runs]
    return f"{formats.between(counts, 'seed')}, none common to all"
  text, most = pluralize(len(comparison.info["seeds"]), "seed"), max(seed_counts(comparison).values(), default=0)
  return f"the {text} that all have, of up to {most}" if most else text


def apart(comparison: ComparisonRecord) -> str:
  """Return which labels have seeds that others lack, and the command that trains the others; "" for none."""
  if not seed_counts(comparison):
    return ""
  groups: dict[tuple[int, ...], list[str]] = {}  # labels by their seeds
  for label, runs in (comparison.whole or comparison).seeds.items():
    groups.setdefault(tuple(map(seed_of, runs)), []).append(label)
  present = "; ".join(f"{formats.listed(labels, 6)}: {_numbers(seeds)}" for seeds, labels in groups.items())
  used = f"figures, ranks and tests are of {_numbers(comparison.info['seeds'])}, which all have"
  if comparison.disjoint:
    used = "no seed is common to all, so that nothing is ranked"
  wanted = ",".join(map(str, sorted({seed for seeds in groups for seed in seeds})))
  command = f"python run.py compare --resume --workdir={shlex.quote(str(comparison.folder))}"
  return f"{present}; {used}. `{command} --config.compare.seeds={wanted}` trains the others."


def _numbers(seeds: Sequence[int]) -> str:
  word = "seed" if len(seeds) == 1 else "seeds"
  return f"{word} {formats.listed(list(map(str, seeds)))}" if seeds else "none"


def clock(comparison: ComparisonRecord) -> list[str]:
  """Return sentences on what seconds are: virtual, or measured on the hardware that ran all workers."""
  if comparison.virtual:
    groups: dict[str, list[str]] = {}  # labels by the components of their virtual time
    for result in comparison.results:
      groups.setdefault(result.info["virtual"].rstrip("."), []).append(result.info["label"])
    texts = [text + (f" ({formats.listed(labels)})" if len(groups) > 1 else "") for text, labels in groups.items()]
    return [f"Seconds are virtual, not measured: {'; '.join(texts)}."]
  where, layouts = layout(comparison), [each for result in comparison.results for each in result.layouts]
  if layouts:
    per_device = sorted({each.workers // each.devices for each in layouts})
    workers = f"{' or '.join(map(str, per_device))} worker{'s' * (per_device[-1] > 1)} per device"
    where = f" on {where}" + f", {workers}" * (per_device != [1])
    where += ", and no message crossed a network" * all(each.processes == 1 for each in layouts)
    together = max(each.together for each in layouts)
    where += f"; up to {together} seeds ran side by side and share their seconds" * (together > 1)
  others = "see the section on other clusters" if comparison.clusters else "compare --cluster=... predicts those"
  return [f"Seconds are measured{where}; they do not rank the algorithms on a cluster: {others}."]


def layout(comparison: ComparisonRecord) -> str:
  """Return the numbers of workers and of their devices as text, "" where they are not known."""
  layouts = [each for result in comparison.results for each in result.layouts]
  if not layouts:
    return ""
  devices = sorted({each.devices for each in layouts})
  workers = formats.between([each.workers for each in layouts], "worker")
  return f"{workers} on {' or '.join(map(str, devices))} device{'s' * (devices != [1])}"


def method(tables: Frames) -> str:
  """Return one sentence on intervals and tests."""
  if tables.single:
    return "One seed: no interval and no test, so that any difference may be due to chance."
  cut = ", cut at 0 and 100 %" if tables.comparison.metric == "test_accuracy" else ""
  few = " Over two seeds they have little meaning." if max(tables.table["seeds"]) == 2 else ""
  return (
    f"Intervals are of 95 % (Student's t{cut}; of costs on the logarithm), tests are t-tests paired by seed with "
    f"Holm's correction.{few}"
  )


def how_to_read(tables: Frames) -> list[str]:
  """Return sentences on what the figures are, for the page's fold."""
  comparison = tables.comparison
  sentences = [
    f"Steps, examples, bytes and seconds are those spent when the curve first meets {comparison.goal}, interpolated "
    "linearly between the evaluations before and after. Examples count all workers together, bytes are those sent per "
    "worker."
  ]
  if tables.single:
    return [method(tables), *sentences]
  sentences += [
    f"{method(tables)} Means of costs are geometric.",
    "Seeds are paired: all algorithms start from the same parameters and see the data in the same order. The test is "
    "of the differences within seeds (of costs: of the ratios), which may be significant although two intervals "
    "overlap: p below 5 % after Holm's correction for all tested pairs of the column.",
    "A pair without a figure of every seed has no test, as the seeds that have one are selected by the outcome.",
  ]
  if comparison.info["grid"]:
    sentences.append(
      "In a grid two algorithms are tested at the same point, and two points of one algorithm where they differ in one "
      "key. A point that no test compares with the best has no mark."
    )
  return sentences + detectable_difference(tables)


def detectable_difference(tables: Frames) -> list[str]:
  """Return the smallest difference that so many seeds find."""
  seeds = int(tables.table["seeds"].min())
  tested = tables.pairs[tables.pairs["p"].notna()]
  most = max(tested.groupby(["quantity", "cluster"], dropna=False).size(), default=0)
  if seeds < 2 or not most:
    return []
  size = detectable(seeds, LEVEL / most)
  pairs = pluralize(most, "tested pair")
  return [
    f"With {seeds} seeds and {pairs} a difference is found with a probability of 80 % if it is "
    f"{float(f'{size:.2g}'):,.10g} times the standard deviation of the paired differences or more."
  ]


def plain(sentence: Sentence) -> str:
  """Return a sentence with its subject in front."""
  return f"{sentence[0]}: {sentence[1]}" if sentence[0] else sentence[1]


def caveats(tables: Frames) -> list[Sentence]:
  """Return which labels have other seeds, and the expected orderings."""
  return ([(APART, text)] if (text := apart(tables.comparison)) else []) + expected(tables)
