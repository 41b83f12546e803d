"""What a plan advises first: the algorithm that changes SGD least of those that are nearly the fastest.

Exact ones come first, then gradients in fewer bits, then a message that is a few steps old, then averages between
islands, and periods of hundreds of steps last. How far each has been shown to train as well is in `LEAST`, `SHOWN`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.perf.planning.batch import Job
from ddl.perf.planning.batch_table import Size
from ddl.perf.planning.bounds import examples_factor
from ddl.perf.planning.rates import Settings, Speed
from ddl.perf.units import counted, percent, rate_text, seconds_text

STARTING = 1e-5  # seconds: no machine starts a step sooner
WORTH = 1.5  # speed-up below which several workers are not
NEARLY = 0.9  # of the most examples per second, for which a simpler algorithm is preferred
ORDER = ("sync_sgd", "fsdp", "hybrid_fsdp", "dasgd", "hierarchical_sgd", "local_sgd", "streaming_diloco", "diloco")
HALF = 0.5
LANGUAGE = ("streaming_diloco", "diloco")  # shown to train language models
SHOWN = {  # steps up to which the algorithm's authors show it to train as well
  "dasgd": (4, "DaSGD's authors took a delay of 1 and a period of 4 (arXiv 2006.00441)"),
  "hierarchical_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "local_sgd": (16, "periods up to 16 are common (arXiv 1808.07217)"),
  "streaming_diloco": (500, "shown for language models alone, with AdamW (arXiv 2501.18512)"),
  "diloco": (500, "shown for language models alone, with AdamW (arXiv 2311.08105)"),
}

COMPRESSION = ("int8", "int4", "PowerSGD")  # first words of settings
ROUNDED = (
  "What compression costs is assumed (four passes over the gradients, of PowerSGD 0.2 ms a matrix too); it often takes "
  "more, so measure its gain (arXiv 2103.00543)."
)


class Advice(NamedTuple):
  """The recommendation."""

  speed: Speed
  lines: tuple[str, ...]  # in words, the recommendation first


def pick(found: Sequence[Speed], language: bool = True) -> Speed:
  """Return the first in ORDER, of one name the first, that has NEARLY the best rate of those within SHOWN.

  For a job that is no language model, those shown for language models alone count where the others have less than HALF
  of their rate.
  """
  known = [each for each in found if each.algorithm in ORDER and each.steps <= SHOWN.get(each.algorithm, (0, ""))[0]]
  others = [each for each in known if each.algorithm not in LANGUAGE]
  if not language and others and max(map(_rate, others)) >= HALF * max(map(_rate, known)):
    known = others
  near = [each for each in known if each.rate >= NEARLY * max(map(_rate, known))]
  return min(near, key=lambda each: ORDER.index(each.algorithm))


def _rate(speed: Speed) -> float:
  return speed.rate


def advise(
  job: Job, settings: Settings, found: Sequence[Speed], enough: Size | None, *, share: float, alone: float,
  critical: float | None, small: tuple[Settings, Sequence[Speed]] | None,
) -> Advice:  # fmt: skip
  """Return what to run, from how many examples on synchronous SGD suffices, and what so many cost.

  Args:
    found: predictions at `settings`.
    alone: seconds that one worker takes for the examples of all.
    enough: the size from which on synchronous SGD waits for at most `share`.
    critical: the critical batch in examples, where it is known.
    small: settings and predictions with fewer examples, where the recommended ones are more than the device needs.
  """
  best = pick(found, job.language)
  if settings.workers > 1 and settings.step < STARTING:
    first = f"Recommended: one worker. A step of {seconds_text(settings.step)} is too short to be worth an exchange."
    return Advice(best, (first, f"Among several: {_told(best, settings)}", *_note(best)))
  lines = [f"Recommended: {_told(best, settings)}"]
  if settings.workers == 1:
    return Advice(best, (lines[0],))
  if alone < WORTH * best.seconds:
    first = (
      f"Recommended: one worker. It takes {seconds_text(alone)} for all {settings.workers * settings.examples:,} "
      f"examples of a step, {settings.workers} workers take {seconds_text(best.seconds)}: it is too small for them."
    )
    lines = [first, f"Among several: {_told(best, settings)}"]
  lines += [*_note(best), _enough(job, enough, settings, share), _cost(job, settings, critical)]
  if small:
    other = pick(small[1], job.language)
    if other.algorithm != best.algorithm or (other.setting != best.setting and best.algorithm not in SHOWN):
      lines += [f"Where a step should have fewer: {_told(other, small[0])}", *_note(other)]
  return Advice(best, tuple(lines))


def _note(best: Speed) -> list[str]:
  """What has been shown of an algorithm that is not SGD, or of gradients that are not those of SGD."""
  if best.algorithm in SHOWN:
    return [f"{best.algorithm} is another algorithm than SGD: {SHOWN[best.algorithm][1]}."]
  return [ROUNDED] if best.setting.startswith(COMPRESSION) else []


def _told(best: Speed, settings: Settings) -> str:
  s = settings
  micro = f" in {s.micro} microbatches" if s.micro > 1 else ""
  return (
    f"{best.algorithm} ({best.setting}) with {counted(s.examples, 'example')} per worker{micro}, "
    f"{s.examples * s.workers:,} a step: {percent(best.efficiency)} of {counted(s.workers, 'worker')}, "
    f"{rate_text(best.rate)} examples/s."
  )


def _enough(job: Job, enough: Size | None, settings: Settings, share: float) -> str:
  kept = f"synchronous SGD keeps {percent(1 - share)}"
  if enough is None:
    return f"With no number of examples that fits {kept}."
  whole = f"{enough.examples * settings.workers:,} a step"
  if enough.micro == 1:
    return f"From {counted(enough.examples, 'example')} per worker on ({whole}) {kept}."
  part = enough.examples // enough.micro
  unusual = ", more than usual" if job.usual and enough.examples * settings.workers > job.usual.examples else ""
  return (
    f"By accumulating gradients over {enough.micro} microbatches of {part} ({enough.examples:,} examples per worker, "
    f"{whole}{unusual}) {kept}."
  )


def _cost(job: Job, settings: Settings, critical: float | None) -> str:
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
