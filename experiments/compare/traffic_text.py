"""What a worker sends, in words, from the record of an algorithm's own functions: the reason for its bytes."""

from collections import Counter
from collections.abc import Callable, Sequence

from ddl.perf.comm.patterns import Op, Pattern, Visits
from experiments.costs.param_flops import param_shapes
from experiments.costs.patterns import pattern_of
from experiments.report import formats
from experiments.train.build import Components

KINDS = {  # of a collective: its word, and that in the taxonomy
  "all_reduce": ("all-reduce", "all-reduce"), "all_gather": ("all-gather", "all-gather"),
  "reduce_scatter": ("reduce-scatter", "reduce-scatter"), "permute": ("message to a peer", "peer to peer"),
}  # fmt: skip
NOTHING = "nothing"


def described(components: Components, taxonomy_pattern: str) -> tuple[str, str]:
  """(the communication pattern, what is sent at which steps) of an experiment.

  The pattern is that of the taxonomy, but of a compressed algorithm that of the collectives that it has become.
  """
  experiment = components.experiment
  found = pattern_of(components.algorithm, param_shapes(components.model), experiment.workers)
  kinds = [KINDS[op.kind][1] for ops in (found.local, *(each.ops for each in found.exchanges)) for op in ops]
  shown = " + ".join(dict.fromkeys(kinds)) if experiment.wrapper_spec and kinds else taxonomy_pattern
  text = sends(found)
  if text == NOTHING and experiment.workers == 1:
    text += ", as there is one worker"
  return shown, text


def sends(found: Pattern) -> str:
  """What is sent at which steps, in words: "every 5 steps: all-reduce of 4.84 kB"."""
  if found.visits:
    return _visits(found.visits)
  at_each = Counter({("at each step", found.local): 1} if found.local else {})
  at_each.update((_when(each.period), each.ops) for each in found.exchanges if each.ops)
  texts = [f"{when}{f', {count} times' * (count > 1)}: {_ops(ops)}" for (when, ops), count in at_each.items()]
  sampled = any(op.senders for _, ops in at_each for op in ops)
  return "; ".join(texts + [formats.SAMPLED] * sampled) or NOTHING


def _when(period: int | Callable[[int], int]) -> str:
  if callable(period):
    return "at changing periods"
  return "at each step" if period == 1 else f"every {period} steps"


def _ops(ops: Sequence[Op]) -> str:
  """The collectives by kind, with the number and the bytes of all of a kind."""
  by_kind: dict[tuple[str, int | None], list[float]] = {}
  for op in ops:
    by_kind.setdefault((op.kind, op.senders), []).append(op.nbytes)
  return " and ".join(_of_a_kind(*kind, nbytes) for kind, nbytes in by_kind.items())


def _of_a_kind(kind: str, senders: int | None, nbytes: Sequence[float]) -> str:
  word, size = KINDS[kind][0], formats.figure("bytes_sent", sum(nbytes))
  among = f" among {senders} of the workers" if senders else ""
  if len(nbytes) == 1:
    return f"{word} of {size}{among}"
  plural = word.replace("message to a peer", "messages to peers") if kind == "permute" else f"{word}s"
  return f"{len(nbytes)} {plural} of {size} together{among}"


def _visits(found: Visits) -> str:
  up, down = (formats.figure("bytes_sent", each) for each in (found.up, found.down))
  ways = ("to a peer", "from it") if found.peers else ("to the server", "back")
  parts = [f"{size} {way}" for size, way, sent in ((up, ways[0], found.up), (down, ways[1], found.down)) if sent]
  if not parts:
    return NOTHING
  chance = f", with a probability of {found.probability:g}" * (found.probability < 1)
  return f"{_when(found.period)}{chance}: {' and '.join(parts)}"
