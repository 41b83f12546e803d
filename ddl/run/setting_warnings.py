"""Warnings of settings that are usually mistakes."""

import warnings
from typing import Any

from ddl.algorithms import COLLECTIVE
from ddl.config.experiment import Experiment
from ddl.schedule import Schedule


def warn(experiment: Experiment, algorithm: Any, pull: float) -> None:
  """Warn of doubtful settings; pull: p alpha of all workers at a center."""
  texts = [
    _of_wrapper(experiment),
    _of_memory(experiment),
    _of_silence(experiment, algorithm),
    _of_momentum(experiment),
  ]
  if pull > 1:  # the center's own coefficient is 1 - p alpha: beyond 2 it diverges
    texts.append(f"p alpha = {pull:g} exceeds 1, so that the center overshoots; the authors take 0.9")
  for text in filter(None, texts):
    warnings.warn(text, stacklevel=3)


def _of_wrapper(experiment: Experiment) -> str:
  """Return a warning of a compressor of small changes where whole models are sent."""
  name, wrapper, spec = experiment.algorithm.short_name, experiment.wrapper.short_name, experiment.wrapper_spec
  if spec and experiment.spec.taxonomy.payload == "parameters" != spec.payload:
    return f"{name} sends parameters; {wrapper} is made for gradients and differences, as diloco's"
  return ""


def _of_memory(experiment: Experiment) -> str:
  """Return a warning of random-k's memory in the loop of an algorithm with a center (the limit: see `randomk`)."""
  name, alpha = experiment.algorithm.short_name, experiment.algorithm.get("alpha")
  if experiment.wrapper.name != "randomk" or experiment.algorithm.name not in COLLECTIVE or not alpha:
    return ""
  share, momentum = experiment.wrapper.share, experiment.algorithm.get("momentum", 0.0) if name == "sma" else 0.0
  in_turn = experiment.spec.taxonomy.pattern == "round robin"
  pull, limit = alpha * (1 if in_turn else experiment.workers), 2 * share / (2 - share) * (1 - momentum)
  if share >= 1 or pull <= limit:
    return ""
  return (
    f"{experiment.label}: {'alpha' if in_turn else 'p alpha'} is {pull:g}; above {limit:.3g} the center is likely to "
    f"diverge with a share of {share:g}, as the memory adds up the same differences; take a larger "
    "config.wrapper.share or a smaller config.algorithm.alpha"
  )


def _of_silence(experiment: Experiment, algorithm: Any) -> str:
  """Return a warning of exchanges that a run ends before.

  Exchanges of one period take turns: of these the first one counts. What leaves before the first step carries nothing.
  """
  first: dict[int, int] = {}  # period -> steps until a message arrives
  if experiment.has_server:
    first[algorithm.period] = algorithm.period
  else:
    for clock in Schedule(algorithm.exchanges).clocks:
      arrival = (clock.first or clock.period(0)) + clock.delay
      first[clock.period(0)] = min(arrival, first.get(clock.period(0), arrival))
  late = [arrival for arrival in first.values() if arrival > experiment.steps]
  if not late:
    return ""
  which, ends = ("", "nothing is exchanged") if len(late) == len(first) else (" of one kind", "it never does")
  return (
    f"{experiment.label}: the first exchange of trained values{which} arrives after {min(late)} steps, this run has "
    f"{experiment.steps}, so that {ends}; take a smaller config.algorithm.{experiment.length_key(min(late))}, or more "
    "steps"
  )


def _of_momentum(experiment: Experiment) -> str:
  """Return a warning of a second momentum: the algorithm's own, or the implicit one of asynchrony."""
  name, workers = experiment.algorithm.short_name, experiment.workers
  own, momentum = experiment.algorithm.get("momentum"), experiment.optimizer.get("momentum")
  if own and momentum:
    return f"{name} has a momentum of its own ({own:g}); config.optimizer.momentum adds a second one to it"
  if not (own or momentum) or experiment.spec.taxonomy[1:3] != ("centralized", "asynchronous") or workers == 1:
    return ""
  setting = f"config.algorithm.momentum={own:g}" if own else f"config.optimizer.momentum={momentum:g}"
  return (
    f"{name}: {workers} workers in turn act like a momentum of about 1 - 1/{workers} = {1 - 1 / workers:.3g} "
    f"(Mitliagkas et al. 2016, arXiv 1605.09774); {setting} adds to it; try 0, or less of it"
  )
