"""Warn about settings that are usually mistakes."""

import warnings
from collections.abc import Iterator
from typing import Any

from ddl.algorithms import COLLECTIVE
from ddl.config.experiment import CONSTANT_PERIOD, Experiment, Part
from ddl.config.user_code import is_address
from ddl.schedule import Schedule


def warn(experiment: Experiment, algorithm: Any, pull: float) -> None:
  """Warn about questionable settings.

  pull: workers x alpha, the weight with which all workers together pull the center.
  """
  texts = [
    _of_wrapper(experiment),
    _of_memory(experiment),
    _of_silence(experiment, algorithm),
    _of_momentum(experiment),
    *_of_expectations(experiment),
  ]
  if pull > 1:  # the center's coefficient is 1 - p alpha; for p alpha > 2 the center diverges
    product = f"config.algorithm.alpha x {experiment.workers} workers"
    texts.append(f"{product} is {pull:g}; above 1 the center overshoots; the authors of EASGD use 0.9")
  for text in filter(None, texts):
    warnings.warn(text, stacklevel=3)


def _of_wrapper(experiment: Experiment) -> str:
  """Return a warning if a compressor designed for gradients compresses whole models."""
  name, wrapper, spec = experiment.algorithm.short_name, experiment.wrapper.short_name, experiment.wrapper_spec
  if spec and experiment.spec.taxonomy.payload == "parameters" != spec.payload:
    return f"{name} sends parameters; {wrapper} is designed for gradients and for differences such as those of diloco"
  return ""


def _of_memory(experiment: Experiment) -> str:
  """Return a warning if random-k's error feedback is likely to make the center diverge; see `randomk` for the limit."""
  name, alpha = experiment.algorithm.short_name, experiment.algorithm.get("alpha")
  if experiment.wrapper.name != "randomk" or experiment.algorithm.name not in COLLECTIVE or not alpha:
    return ""
  share, momentum = experiment.wrapper.share, experiment.algorithm.get("momentum", 0.0) if name == "sma" else 0.0
  in_turn = experiment.spec.taxonomy.pattern == "round robin"
  pull, limit = alpha * (1 if in_turn else experiment.workers), 2 * share / (2 - share) * (1 - momentum)
  if share >= 1 or pull <= limit:
    return ""
  return (
    f"{experiment.label}: config.algorithm.alpha{'' if in_turn else ' x workers'} is {pull:g}; above {limit:.3g} the "
    f"center is likely to diverge with config.wrapper.share={share:g}, because error feedback accumulates the same "
    "differences repeatedly; increase config.wrapper.share or decrease config.algorithm.alpha"
  )


def _of_silence(experiment: Experiment, algorithm: Any) -> str:
  """Return a warning if the run ends before an exchange of trained values arrives.

  Exchanges with the same period take turns or coincide, so only the first of them to arrive counts. Messages sent
  before the first step contain no trained values.
  """
  if experiment.period_schedule != CONSTANT_PERIOD:
    return ""  # computing a period may initialize JAX's devices; the last round of QSR ends with the run
  first: dict[int, int] = {}  # period -> steps until the first message arrives
  if experiment.has_server:
    first[algorithm.period] = algorithm.period
  else:
    for clock in Schedule(algorithm.exchanges).clocks:
      arrival = (clock.first or clock.period(0)) + clock.delay
      first[clock.period(0)] = min(arrival, first.get(clock.period(0), arrival))
  late = [arrival for arrival in first.values() if arrival > experiment.steps]
  if not late:
    return ""
  which, result = ("the first exchange of trained values", "nothing is exchanged")
  if len(late) < len(first):
    which, result = "one of the exchanges of trained values", "it never arrives"
  return (
    f"{experiment.label}: {which} would arrive only after {min(late)} steps, but the run has only "
    f"{experiment.steps}, so {result}; decrease config.algorithm.{experiment.length_key(min(late))} or increase "
    "config.steps"
  )


def _of_momentum(experiment: Experiment) -> str:
  """Return a warning if two kinds of momentum add up: of the optimizer, algorithm, wrapper or asynchronous workers."""
  name, workers = experiment.algorithm.short_name, experiment.workers
  momentum = experiment.optimizer.get("momentum")
  for part in (experiment.algorithm, experiment.wrapper):
    if momentum and part.get("momentum"):
      return f"{part.short_name} already has momentum ({part.momentum:g}); config.optimizer.momentum adds a second one"
  built_in = experiment.algorithm.get("momentum")
  if not (built_in or momentum) or experiment.spec.taxonomy[1:3] != ("centralized", "asynchronous") or workers == 1:
    return ""
  setting = f"config.algorithm.momentum={built_in:g}" if built_in else f"config.optimizer.momentum={momentum:g}"
  return (
    f"{name}: {workers} asynchronous workers act like a momentum of about 1 - 1/{workers} = {1 - 1 / workers:.3g} "
    f"(Mitliagkas et al. 2016, arXiv 1605.09774); {setting} adds to it; try 0 or a smaller value"
  )


def _of_expectations(experiment: Experiment) -> Iterator[str]:
  """Yield a warning for each setting whose value differs from the one that the algorithm expects (`Spec.expects`)."""
  for path, (expected, consequence) in experiment.spec.expects.items():
    section, _, key = path.partition(".")
    part: Part = getattr(experiment, section)
    value = part.short_name if key == "name" else part.get(key, expected)
    if value != expected and not is_address(part.name):
      name = experiment.algorithm.short_name
      yield f"config.{path} should be {expected} for {name}, got {value}: {consequence}"
