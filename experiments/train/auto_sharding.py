"""`--sharding=auto`: dense layers split by outputs or by examples, whichever moves fewer bytes (arXiv 1602.06709)."""

from typing import Any

import jax

from ddl.api import Model
from ddl.perf.planning import hybrid
from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables.build import dense
from ddl.runtime.layout.workers import divisors
from ddl.sharding import Rules, columns
from experiments.config.experiment import Experiment

AUTO = "auto"


def with_auto(model: Model, experiment: Experiment, members: int) -> Model:
  """Return the model with rules named "auto", if it has "hybrid" ones, for these workers of so many members."""
  if "hybrid" not in model.rules:
    return model
  return model._replace(rules={**model.rules, AUTO: _rules(model, experiment, members)})


def _rules(model: Model, experiment: Experiment, members: int) -> Rules:
  workers, nodes, table = experiment.workers, experiment.workers * members, _table(model)
  total = workers * experiment.batch
  split = [layer.name for layer in table if _inside(layer, total, nodes, workers) < _across(layer, total, nodes)]
  sums = {groups: sum(_least(layer, total, nodes, groups) for layer in table) for groups in divisors(nodes)}
  best = nodes // min(sums, key=lambda groups: (sums[groups], -groups))  # N / G*
  words = f"{', '.join(split)} by outputs" if split else "all layers by examples"
  note = f"{words}; the fewest bytes of {nodes} devices have workers of {best}"
  return columns([layer.name for layer in table], model.rules["hybrid"].batch, split)._replace(note=note)


def _least(layer: Layer, total: int, nodes: int, groups: int) -> float:
  return min(_inside(layer, total, nodes, groups), _across(layer, total, nodes))


def _inside(layer: Layer, total: int, nodes: int, groups: int) -> float:
  """Bytes of a node if the members of each group split the layer by outputs."""
  if groups == nodes or layer.outputs % (nodes // groups):  # what does not divide stays whole
    return _across(layer, total, nodes)
  return hybrid.volume(layer, total, nodes, groups).total


def _across(layer: Layer, total: int, nodes: int) -> float:
  """Bytes of a node if all share the examples."""
  return hybrid.volume(layer, total, nodes, nodes).total


def _table(model: Model) -> Table:
  """Return the dense layers that the hybrid rules split."""
  params: Any = jax.eval_shape(lambda: model.init(jax.random.key(0)))[0]  # a key outside would start the devices
  return tuple(dense(name, *params[name]["kernel"].shape) for name in model.rules["hybrid"].layers)
