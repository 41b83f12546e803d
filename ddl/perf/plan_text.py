"""Format a plan in the order of a decision: what to run, its speed and cost, why, what changes it, and alternatives."""

import math
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ddl.names import pluralize
from ddl.perf import collectives, memory_text, scaling
from ddl.perf.batch_size import examples_factor
from ddl.perf.cluster import Cluster
from ddl.perf.families import Speed, islands, message_bytes, synchronous_seconds
from ddl.perf.layers import train_flop
from ddl.perf.placement import Job, UsualBatch
from ddl.perf.plan import FULL, HALF, IMAGES, LANGUAGE, RANK, SHORTEST, SHOWN, TrainingPlan, pick
from ddl.perf.units import bytes_text, columns, percent, rate_text, rough_rate, seconds_text

WIDTH, INDENT = 118, 13
SLOW, FAST = 0.5, 1.05  # rates relative to the recommended one: too slow to consider, and notably faster
CONFIGS = {"gpt2_124m": "configs/gpt2_tokens.py", "resnet50": "configs/imagenet_resnet50.py"}  # by layer table
EXACT = ("sync_sgd", "fsdp", "hybrid_fsdp", "tensor_zero1")
FAILURES = 419 / 54 / 16_384  # unexpected interruptions per device and day (arXiv 2407.21783)
LOST = 0.1 * 54 * 24 / 466  # hours per interruption: less than 10 % of 54 days with 466 interruptions were lost
FAILURES_SOURCE = (
  "Llama 3, arXiv 2407.21783: 419 unexpected of 466 interruptions in 54 days on 16,384 H100, with more than 90 % of "
  "the time effective; so 419 / 54 / 16,384 per device and day, each of at most 10 % of 54 days / 466"
)
SELDOM = 1 / 30  # failures per day; fewer are not mentioned
LOSSY = "The cost of compression is assumed and often higher (arXiv 2103.00543), so measure the gain."
SETTINGS = (
  "Set the config's data. Adjust its learning rate, warm-up and decay if they are for another batch or number of steps."
)
UNCOMPARED = "Rates of this algorithm were not compared with published runs."
WORDS = {  # words of settings that need an explanation
  "fragments": "fragments: parts of the model that are averaged separately.",
  "shards": "shards: workers over which one copy of the parameters is split.",
  "rank": "rank: columns of PowerSGD's factors.",
  "groups of": "groups: devices of a node that split each layer.",
}
FASTER = 1.2  # rate relative to the recommended one; the plan says why an algorithm above it is not recommended
FEW, MANY = 0.1, 4.0  # batches relative to the recommended one; smaller and larger ones do not appear as alternatives


class Amount(NamedTuple):
  """The length of the training for which hours are predicted."""

  examples: float
  text: str  # such as "10,000,000,000 tokens"


def hours(result: TrainingPlan, amount: Amount) -> float:
  """Return the hours of training with the recommendation, without failures, evaluation and data loading."""
  return amount.examples / result.advised.rate / 3600


def command(
  result: TrainingPlan, speed: Speed, cluster: Cluster, arguments: str, amount: Amount | None = None,
  usual: UsualBatch | None = None,
) -> str:  # fmt: skip
  """Return the command that trains with an algorithm of a plan; "" if ddl does not implement it.

  arguments: the config's flags. amount: the length of the training, which sets the number of steps. usual: the job's
  usual batch, which may need another optimizer.
  """
  s, name, workers, members, more = result.settings, speed.algorithm, result.workers, 1, []
  if workers == 1:
    pass
  elif name == "tensor_zero1" or speed.setting.startswith(("bfloat16", "float16")):
    return ""
  elif name in ("fsdp", "hybrid_fsdp"):
    name, members = "sync_sgd", int(speed.setting.split()[0])
  elif name in ("diloco", "streaming_diloco") or (name == "hierarchical_sgd" and s.shards > 1):
    name, members = name.replace("hierarchical", "local"), islands(cluster, s.workers).members
    more = [f"algorithm.period={speed.steps}"]
    if name == "streaming_diloco":
      more += [f"algorithm.delay={speed.setting.rpartition(' ')[2]}", "wrapper.name=int8"]
  elif name == "hierarchical_sgd":
    more = [f"algorithm.group_size={islands(cluster, s.workers).members}", "algorithm.period=1"]
    more += [f"algorithm.outer_period={speed.steps}"]
  elif name == "local_sgd":
    more = [f"algorithm.period={s.local_period}"]
  elif name == "dasgd":
    more = [f"algorithm.period={s.period}", f"algorithm.delay={s.delay}"]
  elif speed.setting.startswith("PowerSGD"):
    more = ["wrapper.name=powersgd", f"wrapper.rank={speed.setting.rpartition(' ')[2]}"]
  elif speed.setting.startswith("int8"):
    more = ["wrapper.name=int8"]
  keys = [f"algorithm.name={name}", f"workers={workers // members}", f"batch={speed.batch * members // workers}"]
  keys += [f"microbatches={speed.micro}", *more]  # also 1, because the config may have another number
  keys += ["precision=bfloat16"] * (cluster.device.width == 2)
  if usual and (optimizer := usual.optimizer(speed.batch)):
    keys.append(f"optimizer.name={optimizer}")
  keys += [f"steps={math.ceil(amount.examples / speed.batch)}"] if amount else []
  line = ["python run.py train", arguments, *(f"--config.{key}" for key in keys)]
  return " ".join([*line, f"--members={members}"] if members > 1 else line)


def effect(speed: Speed, language: bool) -> str:
  """Describe the known effect of an algorithm's period and delay on convergence; "none" if it is exact."""
  if speed.algorithm in EXACT:
    exact = speed.algorithm != "sync_sgd" or speed.setting.startswith(("float32", "one", "as"))
    return "none" if exact else f"{_compressed(speed)} gradients"
  if speed.algorithm not in SHOWN or not speed.steps:
    return "unknown: depends on the job"
  if speed.algorithm in (IMAGES if language else LANGUAGE):
    return f"unknown: published for {'images' if language else 'language models'}"
  most = SHOWN[speed.algorithm][0]
  return f"published up to {most} steps" if speed.steps <= most else f"unknown: published up to {most} steps"


def _compressed(speed: Speed) -> str:
  return "rounded" if speed.setting.startswith(FULL) else "compressed"


def text(
  job: Job, name: str, cluster: Cluster, result: TrainingPlan, *, arguments: str = "", sends: str = "",
  ends: Mapping[str, TrainingPlan] = MappingProxyType({}), largest: TrainingPlan | None = None,
  amount: Amount | None = None, critical: float = 0.0, explain: bool = False,
) -> str:  # fmt: skip
  """Format the plan.

  Args:
    name: the cluster's name.
    result: the plan.
    arguments: the config's flags; "": unknown.
    sends: a sentence about the messages of the config's algorithm.
    ends: description of the device's efficiency -> plan with the batch and workers of `result`, for both ends
      of an efficiency range.
    largest: the plan with all workers of the cluster, if `result` has fewer.
    amount: length of the training.
    critical: the critical batch size in examples; 0: unknown.
    explain: whether to add slower algorithms, other batch sizes, formulas and sources.
  """
  ends = {} if result.single else ends
  arguments = arguments or f"--config={CONFIGS.get(job.title.split()[0], 'FILE')}"
  compare = f"python run.py compare {arguments.split(' ')[0]} --cluster={name}"
  sections = {
    "run": _run(job, result, cluster, arguments, amount),
    "speed": [*_speed(job, result, cluster), cluster.network.untested(result.workers)],
    "memory": memory_text.text(job, result, cluster),
    "range": [_end(shares, end, result.best) for shares, end in ends.items()],
    "time": _time(job, result, cluster, amount),
    "cost": _price(result, cluster, amount),
    "why": [*_why(job, result, cluster), sends],
    "batch": _batch(job, result, critical),
    "convergence": _convergence(job, result, cluster),
    "changes if": _changes(result, largest),
    "failures": _failures(result, amount, explain),
  }
  lines = [*textwrap.wrap(f"{job.title} on {cluster.title}", WIDTH), ""]
  for title, sentences in sections.items():
    prefix = title.ljust(INDENT)
    for sentence in filter(None, sentences):
      wrapped = textwrap.wrap(sentence, WIDTH - INDENT, break_on_hyphens=False)
      for line in [sentence] if sentence.startswith("python ") else wrapped:  # a command to paste is one line
        lines.append(prefix + line)
        prefix = " " * INDENT
  if result.settings.workers > 1:
    lines += ["", *_families(job, result, compare, explain)]
  if explain:
    lines += ["", *_sizes(result), "", *_rows(result), "", *textwrap.wrap(f"cluster: {cluster.source}", WIDTH)]
  else:
    lines += ["", "--explain adds slower algorithms, other batch sizes, formulas, limits and sources."]
  return "\n".join(lines)


def _named(speed: Speed) -> str:
  return f"{speed.algorithm} ({speed.setting})"


def _tokens(job: Job, examples: float) -> str:
  return f" ({examples * job.tokens:,.0f} tokens)" if job.tokens else ""


def _run(job: Job, result: TrainingPlan, cluster: Cluster, arguments: str, amount: Amount | None) -> list[str]:
  best, workers, other = result.advised, result.workers, []
  line = command(result, memory_text.accumulated(job, result, cluster, best), cluster, arguments, amount, job.usual)
  each, parts = best.batch // workers, ""
  if best.micro > 1:
    parts = f", accumulated over {best.micro} microbatches of {each // best.micro}"
  whole = f"{best.batch:,} examples{_tokens(job, best.batch)} per step"
  if workers == 1:
    return [f"one worker with {whole}{parts}. There is nothing to exchange.", line, *_settings(job, line)]
  if not line:
    similar = [x for x in result.speeds if x.algorithm in EXACT and x.batch == best.batch]
    runs = [x for x in similar if command(result, x, cluster, arguments)]
    other = ["ddl does not run this."]
    runs.sort(key=lambda x: x.rate < HALF * best.rate)  # first those that are not much slower, by compression
    if nearest := next(iter(runs), None):
      accumulated = memory_text.accumulated(job, result, cluster, nearest)
      line = command(result, accumulated, cluster, arguments, amount, job.usual)
      lossy = "" if nearest.setting.startswith(FULL) or nearest.algorithm != "sync_sgd" else f" {LOSSY}"
      other = [
        f"ddl does not run this. It runs {_named(nearest)}, predicted at {rough_rate(nearest.rate)} examples/s.{lossy}"
      ]
      known = [x for x in result.speeds if x.batch == best.batch and effect(x, job.language)[:7] != "unknown"]
      known = [x for x in known if command(result, x, cluster, arguments)]
      faster = pick(known, job.language)
      if faster.rate > FASTER * nearest.rate:
        other.append(f"ddl also runs {_named(faster)}, predicted at {rough_rate(faster.rate)} examples/s.")
  if best.algorithm != "tensor_zero1":
    whole += f", {pluralize(each, 'example')} per worker"
  if "--members=" in line:
    other.append("In the command, each worker consists of several devices (--members).")
  return [f"{_named(best)} on {workers:,} workers with {whole}{parts}.", *other, line, *_settings(job, line)]


def _settings(job: Job, line: str) -> list[str]:
  """Return what the user still has to set before running the command `line`, as sentences; [] if nothing."""
  if "=FILE" in line:
    return [
      "FILE is a config with this model (if ddl lacks it, see docs/howto/custom_model.md), your data, and a learning "
      "rate for this batch."
    ]
  return [SETTINGS] if line and job.table else []


def _speed(job: Job, result: TrainingPlan, cluster: Cluster) -> list[str]:
  best = result.advised
  tokens = f", {rough_rate(best.rate * job.tokens)} tokens/s" if job.tokens else ""
  share = f", {percent(best.efficiency)} of the rate without any exchange" if result.workers > 1 else ""
  flop = train_flop(job.table) if job.table else job.flop_per_example
  reached = flop * best.rate / (result.workers * cluster.device.peak)
  peak = f", {percent(reached)} of the devices' peak" if reached <= 1 else ""  # Winograd's products can exceed it
  model = f"{rough_rate(best.rate)} examples/s{tokens}; {seconds_text(best.seconds)} per step{share}{peak}."
  if rates := _expected(job, result, cluster):
    lines = [f"Expect {rates.range} examples/s. {rates.text}", f"With overlap: {model}"]
  else:
    lines = [model, UNCOMPARED * (result.workers > 1)]
  if any(layer.experts > 1 for layer in job.table):
    lines.append("Experts are computed like dense layers: messages between experts and uneven loads are not predicted.")
  if job.table and not job.tokens:
    nodes = cluster.network.nodes(result.workers)
    lines.append(f"Each node would have to load {rough_rate(best.rate / nodes)} examples/s, which is not included.")
  return lines


def _expected(job: Job, result: TrainingPlan, cluster: Cluster) -> scaling.ExpectedRates | None:
  """Return the expected rates of synchronous SGD without PowerSGD on several workers, and None otherwise."""
  best, workers = result.advised, result.workers
  if workers == 1 or best.algorithm != "sync_sgd" or not best.setting.endswith("gradients"):
    return None
  sequential, form = cluster._replace(overlap=False), best.setting.split()[0]
  exposed = synchronous_seconds(job, sequential, workers, best.batch / workers, form, best.micro)
  return scaling.expected_rates(best.rate, best.batch / exposed, cluster.network.nodes(workers) > 1)


def _time(job: Job, result: TrainingPlan, cluster: Cluster, amount: Amount | None) -> list[str]:
  if not amount:
    return []
  took, steps = hours(result, amount), math.ceil(amount.examples / result.advised.batch)
  device = f"{took * result.workers:,.0f} device hours" if result.workers > 1 else "one device"
  rates = _expected(job, result, cluster)
  late = f", {amount.examples / rates.low / 3600:,.3g} hours at the lower end of the expected rates" if rates else ""
  return [
    f"{took:,.3g} hours ({device}) for {amount.text} in {steps:,} steps{late}, without evaluation, data loading and "
    "failures."
  ]


def _price(result: TrainingPlan, cluster: Cluster, amount: Amount | None) -> list[str]:
  if not cluster.price:
    return []
  hourly, each = cluster.price * result.workers, f"at {cluster.price:g} per device hour"
  return [f"{hours(result, amount) * hourly:,.0f} {each}." if amount else f"{hourly:,.4g} per hour {each}."]


def _why(job: Job, result: TrainingPlan, cluster: Cluster) -> list[str]:
  s, best, plain = result.settings, result.best, result.speeds[0]
  if s.workers == 1:
    return []
  if s.step < SHORTEST:
    return [
      f"Warning: a step of {seconds_text(s.step)} is shorter than its launch on a real machine, which takes at least "
      "tens of microseconds. This time is device.start in the cluster's description."
    ]
  if result.single:
    gain = "too small a gain" if best.seconds < result.single.seconds else "no gain"
    return [
      f"{s.workers} workers take {seconds_text(best.seconds)} for these examples ({_named(best)}), one worker "
      f"{seconds_text(result.single.seconds)}: {gain}."
    ]
  if s.shards > 1:
    added = max(0.0, best.seconds * (1 - best.efficiency))
    lines = [
      "Parameters, gradients and optimizer states do not fit on one device. Messages add "
      f"{seconds_text(added)} to a step."
    ]
    if best.algorithm == "tensor_zero1":
      lines += [
        f"Groups of devices that split each layer train on {best.batch:,} examples per step, where {plain.algorithm} "
        f"needs {plain.batch:,}. The speed of tensor parallelism follows from its messages and has not been compared "
        "with measurements. It includes sequence parallelism (arXiv 2205.05198); pipeline parallelism is not predicted."
      ]
    return lines
  message = collectives.all_reduce(job.params_bytes, s.workers, cluster.network)
  exchange = (
    f"An all-reduce of {bytes_text(job.params_bytes)} takes {seconds_text(message)}, computation {seconds_text(s.step)}"
  )
  faster = [x for x in result.speeds if x.rate >= FASTER * best.rate and effect(x, job.language)[:7] != "unknown"]
  other = max(faster, key=lambda x: x.rate, default=best)
  lines = [
    f"{_named(other)} would be {other.rate / best.rate:.2g} times as fast, but {best.algorithm} is closer to SGD, and "
    "that is worth a factor of about two."
  ] * bool(faster)
  if plain != best:
    return [f"{exchange}, so {_named(plain)} would be {percent(plain.efficiency)} efficient.", *lines]
  added = best.seconds - s.step
  if not cluster.overlap:
    return [f"{exchange}; they do not overlap.", *lines]
  rest = f"all but {seconds_text(added)}" if added > 1e-4 * s.step else "all"
  return [f"{exchange}. The last backward pass hides {rest} of the all-reduce.", *lines]


def _batch(job: Job, result: TrainingPlan, critical: float) -> list[str]:
  whole, usual = result.advised.batch, job.usual
  if critical:
    return [
      f"The critical batch B_c is {critical:,.0f} examples, from the run's gradient noise scale. With B = {whole:,} "
      f"examples per step, reaching a given loss takes 1 + B / B_c = {examples_factor(whole, critical):.3g} times the "
      "examples that very small batches need (arXiv 1812.06162)."
    ]
  lines = []
  if usual and usual.exceeded(whole):
    fewer = "fewer workers, or tensor or pipeline parallelism," if job.tokens else "fewer workers"
    lines.append(
      f"Warning: {whole:,} examples{_tokens(job, whole)} per step are {whole / usual.examples:.3g} times the largest "
      f"usual batch. Reaching a given loss then probably takes more examples; {fewer} allow a smaller batch."
    )
  if usual:
    lines.append(f"{result.rule[:1].upper()}{result.rule[1:]}. {usual.source}." if result.rule else f"{usual.source}.")
  return [
    *lines,
    "A run with --config.noise_batches=16 measures the critical batch; pass its folder with --run=FOLDER.",
  ]


def _convergence(job: Job, result: TrainingPlan, cluster: Cluster) -> list[str]:
  best = result.advised
  if result.workers == 1 or effect(best, job.language) == "none":
    return []
  lines = [f"Gradients are {_compressed(best)}."]
  if best.algorithm in SHOWN:
    lines = [f"{best.algorithm} is not equivalent to SGD: {SHOWN[best.algorithm][1]}."]
  elif not best.setting.startswith(FULL):
    lines.append(LOSSY)
  if best.algorithm in LANGUAGE:
    partition = islands(cluster, result.workers)
    form, kind = "int8" if best.algorithm == "streaming_diloco" else "float32", partition.kind[:-1]
    sent = 2 * (1 - 1 / partition.count) * message_bytes(job.params_bytes, form) / (best.steps * best.seconds)
    lines.append(f"Each {kind} sends {bytes_text(86_400 * sent)} per day, and all wait for one that is slow or lost.")
  if best.algorithm == "streaming_diloco":
    lines.append("Its fragments are assumed to be of equal size; in ddl, array i belongs to fragment i mod 4.")
  return [*lines, "The effect on this job is not predicted. To measure it, compare with sync_sgd (see below)."]


def _changes(result: TrainingPlan, largest: TrainingPlan | None) -> list[str]:
  s, best, lines = result.settings, result.best, []
  if result.workers == 1:
    return []
  if largest:
    other, workers = largest.advised, largest.settings.workers
    lines.append(
      f"all {workers:,} workers train (--workers={workers}): {_named(other)}, {rate_text(other.rate)} examples/s, "
      f"{percent(other.efficiency)} efficient"
    )
  sizes = ((row, row.size.examples * s.workers) for row in result.table)
  table = [row for row, batch in sizes if FEW <= batch / best.batch <= MANY and row.best.batch == batch]
  changed = [row for row in table if (row.best.algorithm, row.best.setting) != (best.algorithm, best.setting)]
  changed = [row for row in changed if row.best.algorithm != best.algorithm or best.algorithm == "sync_sgd"]
  smaller = [row for row in changed if row.size.examples < s.examples]
  larger = [row for row in changed if row.size.examples > s.examples]
  for row in (*smaller[-1:], *larger[:1]):
    examples = row.size.examples
    lines.append(
      f"a step has {pluralize(examples, 'example')} per worker ({examples * s.workers:,}): {_named(row.best)}, "
      f"{percent(row.best.efficiency)} efficient"
    )
  for factor, other in result.bandwidths:
    lines.append(f"the bandwidth is {factor:g} times this: {_named(other)}, {percent(other.efficiency)} efficient")
  return lines


def _end(shares: str, result: TrainingPlan, best: Speed) -> str:
  s, exact = result.settings, result.speeds[0]
  other = "" if result.best.algorithm == best.algorithm else f"; {result.best.algorithm} is then recommended"
  return (
    f"If computation reaches {shares}, a step on {pluralize(s.examples, 'example')} takes {seconds_text(s.step)} and "
    f"{exact.algorithm} is {percent(exact.efficiency)} efficient{other}."
  )


def _failures(result: TrainingPlan, amount: Amount | None, explain: bool) -> list[str]:
  daily = FAILURES * result.workers
  if daily < SELDOM:
    return []
  often = f"{daily:.2g} per day" if daily >= 1 else f"one in {1 / daily:.2g} days"
  total = f", {daily * hours(result, amount) / 24:,.2g} in this run" if amount else ""
  source = FAILURES_SOURCE if explain else "rates of Llama 3, arXiv 2407.21783"
  cost = f"each may cost up to {60 * LOST:.0f} minutes of all devices, {percent(daily * LOST / 24)} of the time"
  return [f"About {often}{total}; {cost} ({source})."]


def _families(job: Job, result: TrainingPlan, compare: str, explain: bool) -> list[str]:
  """Format the table of algorithms: with `explain` all, otherwise those that are worth considering."""
  best, plain = result.best, result.speeds[0]

  def considered(x: Speed) -> bool:
    simple = RANK.get(x.algorithm, math.inf) <= RANK[best.algorithm] and x.rate >= SLOW * best.rate
    faster = x.rate >= FAST * best.rate
    return x.setting == "as configured" or x in (best, plain) or ((simple or faster) and not result.single)

  shown = [x for x in result.speeds if explain or considered(x)]
  effects = [effect(x, job.language) for x in shown]
  batches = len({x.batch for x in shown}) > 1
  head = ["algorithm", "setting", "effect on convergence", *["batch"] * batches, "step", "efficiency", "examples/s"]
  rows = []
  for x, known in zip(shown, effects, strict=True):
    mark = "* " if x == best and not result.single else "  "
    speeds = [seconds_text(x.seconds), percent(x.efficiency), rate_text(x.rate)]
    rows.append([mark + x.algorithm, x.setting, known, *[f"{x.batch:,}"] * batches, *speeds])
  notes = ["*: recommended."] * (best in shown and not result.single)
  notes.append("efficiency: share of the rate without any exchange; convergence is not included.")
  if any("period" in x.setting for x in shown):
    notes.append("period: steps between averages. delay: steps after which an average is used.")
  notes += [meaning for word, meaning in WORDS.items() if any(word in x.setting for x in shown)]
  lines = [*columns([head, *rows], left=3), *textwrap.wrap(" ".join(notes), WIDTH)]
  if set(effects) != {"none"}:
    lines += [
      "To measure an effect, add the algorithms to config.compare.algorithms of the config and run",
      f"  {compare}",
    ]
  return lines


def _sizes(result: TrainingPlan) -> list[str]:
  """Format the table of batch sizes."""
  relative = ["relative time to a loss"] * (result.table[0].relative is not None)
  head = ["examples/worker", "recommended", "step", "sync_sgd", *relative]
  rows = [
    [f"{x:,}" + (f" ({micro} x {x // micro})" if micro > 1 else ""), f"{row.best.algorithm} ({row.best.setting})",
     seconds_text(row.step), percent(row.efficiency), *([f"{row.relative:.3g}x"] if row.relative is not None else [])]
    for row in result.table for x, micro in [row.size]
  ]  # fmt: skip
  return columns([head, *rows], left=2)


def _rows(result: TrainingPlan) -> list[str]:
  lines = ["reasons and limits"]
  for row in result.rows:
    lines.append(f"{row.quantity}: {row.value}")
    for sentence in (row.why, f"limit: {row.limit}"):
      lines += textwrap.wrap(sentence, WIDTH, initial_indent="    ", subsequent_indent="    ")
  return lines
