"""Rows of a plan on the exchange: the cheapest all-reduce against its bound, packed or not, and hybrid groups."""

from collections.abc import Sequence

from ddl.perf.comm import collectives
from ddl.perf.hardware.network import Network
from ddl.perf.planning import hybrid
from ddl.perf.planning.rows import Row
from ddl.perf.step.layers import Table
from ddl.perf.units import bytes_text, seconds_text


def all_reduce(nbytes: float, workers: int, network: Network) -> Row:
  """The cheapest algorithm, and the ratio of each one to the lower bound."""
  found = collectives.table(nbytes, workers, network)
  best = next(iter(found))
  each = ", ".join(f"{name} {seconds_text(took)} ({ratio:.3g})" for name, (took, ratio) in found.items())
  bound, nodes = seconds_text(collectives.network_bound(nbytes, workers, network)), network.nodes(workers)
  factor = 2 * (2 - network.main_link(workers).duplex)
  formula = f"ceil(log2 p) L + {factor:g} n G (p - 1) / p"
  if ("between" if nodes > 1 else "inside") in network.reduces:
    formula = f"L + {factor / 2:g} n G of switches that add up"
  count = f"{nodes} nodes" if nodes > 1 else f"{workers} workers of a node"
  why = f"seconds for {bytes_text(nbytes)}, in brackets as multiples of the lower bound: {each}"
  limit = f"the bound {formula} = {bound} with p = {count}"
  return Row("all-reduce", best, why, limit)


def messages(nbytes: Sequence[float], workers: int, network: Network) -> Row:
  """One message of all layers, or one of each: packing saves (layers - 1) latencies (arXiv 1708.02983)."""
  packed = collectives.all_reduce(sum(nbytes), workers, network)
  apart = sum(collectives.all_reduce(size, workers, network) for size in nbytes)
  why = f"one message takes {seconds_text(packed)}, {len(nbytes)} of a layer each {seconds_text(apart)}"
  saved = max(0.0, apart - packed) / apart if apart else 0.0
  limit = f"latency: packing saves {100 * saved:.3g} %; apart, the first can leave while the rest is computed"
  return Row("messages", "packed" if saved > 0.1 else "by layer", why, limit)


def groups(table: Table, batch: float, workers: int, duplex: float) -> Row:
  """The best of data, model and hybrid parallelism for each layer, by the bytes of a step (arXiv 1602.06709)."""
  found = hybrid.choices(table, batch, workers, duplex)
  whole = sum(sum(choice.volume) for choice in found)
  data = sum(sum(hybrid.volume(layer, batch, workers, workers, duplex)) for layer in table)
  other = [c for c in found if c.kind != "data"]
  named = ", ".join(f"{c.layer} {c.kind} G = {c.groups}" for c in other[:4]) + (", ..." if len(other) > 4 else "")
  why = f"bytes of a node and step {bytes_text(whole)}, all data parallel {bytes_text(data)}"
  value, limit = f"{len(other)} of {len(found)} layers", "planned here, not built: ddl is data parallel"
  return Row("hybrid parallelism", value, f"{named}: {why}" if other else why, limit)
