"""Warnings of settings that can be meant, but seldom are."""

import warnings

from ddl.api import Algorithm, ServerAlgorithm
from ddl.schedule import Schedule
from experiments.config.experiment import Experiment


def warn(experiment: Experiment, algorithm: Algorithm | ServerAlgorithm, pull: float) -> None:
  """Warn of what is doubtful; pull: p alpha of all workers at a center."""
  _of_wrapper(experiment)
  _of_silence(experiment, algorithm)
  _of_momentum(experiment)
  if pull > 1:  # the center's own coefficient is 1 - p alpha: beyond 2 it diverges
    warnings.warn(f"p alpha = {pull:g} exceeds 1, so that the center overshoots; the authors take 0.9", stacklevel=3)


def _of_wrapper(experiment: Experiment) -> None:
  """Warn of a compressor of small changes where whole models are sent."""
  spec = experiment.wrapper_spec
  if spec and experiment.spec.taxonomy.payload == "parameters" != spec.payload:
    warnings.warn(
      f"{experiment.algorithm.short_name} sends parameters; {experiment.wrapper.short_name} is made for gradients and "
      "differences, as diloco's",
      stacklevel=4,
    )


def _of_silence(experiment: Experiment, algorithm: Algorithm | ServerAlgorithm) -> None:
  """Warn of a run that ends before any exchange does: each worker trains alone."""
  clocks = Schedule(algorithm.exchanges).clocks if isinstance(algorithm, Algorithm) else []
  if clocks and (first := min(clock.first + clock.delay for clock in clocks)) > experiment.steps:
    warnings.warn(
      f"{experiment.label}: the first exchange arrives after {first} steps, this run has {experiment.steps}, so that "
      "nothing is exchanged; take a shorter config.algorithm.period, or more steps",
      stacklevel=4,
    )


def _of_momentum(experiment: Experiment) -> None:
  """Warn of a second momentum: the algorithm's own, or the implicit one of asynchrony."""
  name, workers = experiment.algorithm.short_name, experiment.workers
  own, momentum = experiment.algorithm.get("momentum"), experiment.optimizer.get("momentum")
  if own and momentum:
    warnings.warn(
      f"{name} has a momentum of its own ({own:g}); config.optimizer.momentum adds a second one to it", stacklevel=4
    )
  elif (own or momentum) and experiment.spec.taxonomy[1:3] == ("centralized", "asynchronous") and workers > 1:
    chosen = f"config.algorithm.momentum={own:g}" if own else f"config.optimizer.momentum={momentum:g}"
    warnings.warn(
      f"{name}: {workers} workers in turn act like a momentum of about 1 - 1/{workers} = {1 - 1 / workers:.3g} "
      f"(Mitliagkas et al. 2016, arXiv 1605.09774); {chosen} adds to it; try 0, or less of it",
      stacklevel=4,
    )
