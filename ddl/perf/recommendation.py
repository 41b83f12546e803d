"""The recommendation of a plan: the algorithm that changes SGD least of those that are nearly the fastest.

Exact ones come first, then gradients in fewer bits, then a message that is a few steps old, then averages between
islands, and periods of hundreds of steps last. `SHOWN` has how far each has been shown to train as well.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.names import pluralize
from ddl.perf.batch import BatchSize, examples_factor
from ddl.perf.families import FamilySettings, Speed
from ddl.perf.placement import Job
from ddl.perf.units import percent, rate_text, seconds_text

SHORTEST = 1e-5  # seconds: no machine starts a step sooner
WORTH = 1.5  # speed-up below which several workers are not
NEARLY = 0.9  # of the most examples per second, for which a simpler algorithm is preferred
ORDER = ("sync_sgd", "fsdp", "hybrid_fsdp", "dasgd", "hierarchical_sgd", "local_sgd", "streaming_diloco", "diloco")
HALF = 0.5
LANGUAGE = ("streaming_diloco", "diloco")  # shown to train language models
SHOWN = {  # steps up to which the algorithm's authors show it to train as well
  "dasgd": (4, "DaSGD's authors took a delay of 1 and a period of 4 (arXiv 2006.00441)"),
  "hierarchical_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "local_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "streaming_diloco": (500, "shown only for language models, with AdamW (arXiv 2501.18512)"),
  "diloco": (500, "shown only for language models, with AdamW (arXiv 2311.08105)"),
}
COMPRESSION = ("int8", "int4", "PowerSGD")  # first words of settings
ROUNDED = (
  "What compression costs is assumed (four passes over the gradients, of PowerSGD 0.2 ms a matrix too); it often takes "
  "more, so measure its gain (arXiv 2103.00543)."
)


class Recommendation(NamedTuple):
  """The recommended algorithm."""

  speed: Speed
  lines: tuple[str, ...]  # sentences, the recommendation first


def pick(speeds: Sequence[Speed], language: bool = True) -> Speed:
  """Return the first in ORDER, of one name the first, that has NEARLY the best rate of those within SHOWN.

  For a job that is no language model, those shown only for language models count where the others have less than HALF
  of their rate.
  """
  known = [each for each in speeds if each.algorithm in ORDER and each.steps <= SHOWN.get(each.algorithm, (0, ""))[0]]
  others = [each for each in known if each.algorithm not in LANGUAGE]
  best = max(each.rate for each in known)
  if not language and others and max(each.rate for each in others) >= HALF * best:
    known, best = others, max(each.rate for each in others)
  return min((each for each in known if each.rate >= NEARLY * best), key=lambda each: ORDER.index(each.algorithm))


def recommend(
  job: Job, settings: FamilySettings, speeds: Sequence[Speed], enough: BatchSize | None, *, share: float, alone: float,
  critical: float | None, small: tuple[FamilySettings, Sequence[Speed]] | None,
) -> Recommendation:  # fmt: skip
  """Return what to run, from how many examples on synchronous SGD suffices, and what so many cost.

  Args:
    speeds: predictions at `settings`.
    alone: seconds that one worker takes for the examples of all.
    enough: the size from which on synchronous SGD waits for at most `share`.
    critical: the critical batch in examples, where it is known.
    small: settings and predictions with fewer examples, where the recommended ones are more than the device needs.
  """
  best = pick(speeds, job.language)
  several = f"Among several: {_described(best, settings)}"
  if settings.workers > 1 and settings.step < SHORTEST:
    first = f"Recommended: one worker. A step of {seconds_text(settings.step)} is too short to be worth an exchange."
    return Recommendation(best, (first, several, *_note(best)))
  lines = [f"Recommended: {_described(best, settings)}"]
  if settings.workers == 1:
    return Recommendation(best, (lines[0],))
  if alone < WORTH * best.seconds:
    first = (
      f"Recommended: one worker. It takes {seconds_text(alone)} for all {settings.workers * settings.examples:,} "
      f"examples of a step, {settings.workers} workers take {seconds_text(best.seconds)}: it is too small for them."
    )
    lines = [first, several]
  lines += [*_note(best), _enough(job, enough, settings, share), _cost(job, settings, critical)]
  if small:
    other = pick(small[1], job.language)
    if other.algorithm != best.algorithm or (other.setting != best.setting and best.algorithm not in SHOWN):
      lines += [f"Where a step should have fewer: {_described(other, small[0])}", *_note(other)]
  return Recommendation(best, tuple(lines))


def _note(best: Speed) -> list[str]:
  """What has been shown of an algorithm that is not SGD, or of gradients that are not those of SGD."""
  if best.algorithm in SHOWN:
    return [f"{best.algorithm} is another algorithm than SGD: {SHOWN[best.algorithm][1]}."]
  return [ROUNDED] if best.setting.startswith(COMPRESSION) else []


def _described(best: Speed, settings: FamilySettings) -> str:
  s = settings
  micro = f" in {s.micro} microbatches" if s.micro > 1 else ""
  return (
    f"{best.algorithm} ({best.setting}) with {pluralize(s.examples, 'example')} per worker{micro}, "
    f"{s.examples * s.workers:,} a step: {percent(best.efficiency)} of {pluralize(s.workers, 'worker')}, "
    f"{rate_text(best.rate)} examples/s."
  )


def _enough(job: Job, enough: BatchSize | None, settings: FamilySettings, share: float) -> str:
  kept = f"synchronous SGD keeps {percent(1 - share)}"
  if enough is None:
    return f"With no number of examples that fits {kept}."
  whole = f"{enough.examples * settings.workers:,} a step"
  if enough.micro == 1:
    return f"From {pluralize(enough.examples, 'example')} per worker on ({whole}) {kept}."
  part = enough.examples // enough.micro
  unusual = ", more than usual" if job.usual and enough.examples * settings.workers > job.usual.examples else ""
  return (
    f"By accumulating gradients over {enough.micro} microbatches of {part} ({enough.examples:,} examples per worker, "
    f"{whole}{unusual}) {kept}."
  )


def _cost(job: Job, settings: FamilySettings, critical: float | None) -> str:
  whole = settings.workers * settings.examples
  if critical:
    more = examples_factor(whole, critical)
    return (
      f"The critical batch is {critical:,.0f} examples, by the run's gradient noise: steps of {whole:,} take "
      f"1 + B / B_c = {more:.3g} times the examples to a loss that small steps take (arXiv 1812.06162)."
    )
  known = f" {job.usual.source[0].upper()}{job.usual.source[1:]}." if job.usual else ""
  return (
    f"What {whole:,} examples a step cost in convergence is unknown here.{known} A run with --config.noise_batches=16 "
    "measures the critical batch: --run=FOLDER."
  )
