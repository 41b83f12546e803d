"""Seconds and workspaces of a device's convolution algorithms, for the 0-1 program of `step.convolution`.

Seconds are those of `model`, measured shares in them; workspaces those of `step.convolution_costs`, an upper bound, as
fused kernels keep transforms on the chip.
"""

from collections.abc import Callable

import numpy as np

from ddl.perf.devices.model import Shares, cost, device_step, flop
from ddl.perf.hardware.device import Device, Efficiency, Part, part_seconds
from ddl.perf.step.convolution import Costs
from ddl.perf.step.convolution_costs import ALGORITHMS, is_convolution
from ddl.perf.step.layers import Table


def measured_costs(
  table: Table, device: Device, shares: Shares
) -> tuple[Callable[[int], Costs], Callable[[int], float]]:
  """(X -> costs of each convolution's algorithms, X -> seconds of all else). device: with the step's start."""
  efficiency = Efficiency(shares.product, memory=shares.memory)
  layers = [(layer, i == 0) for i, layer in enumerate(table) if is_convolution(layer)]

  def costs(examples: int) -> Costs:
    seconds, workspace = np.full((2, len(layers), len(ALGORITHMS)), np.inf)
    workspace[:] = 0.0
    for k, (layer, first) in enumerate(layers):
      for i, (name, workspaces) in enumerate(ALGORITHMS.items()):
        counted, slower = workspaces(layer, examples), cost(name, shares)
        if counted is None or not np.isfinite(slower) or (name == "fft" and min(layer.kernel) < 5):
          continue
        part = Part(flop(layer, first) * slower, layer.moved, 3 * layer.params)
        seconds[k, i], workspace[k, i] = part_seconds(part, examples, device, efficiency), device.width * counted[2]
    return Costs(tuple(ALGORITHMS), seconds, workspace)

  names = {layer.name: "direct" for layer, _ in layers}
  direct = device_step(table, device, shares._replace(start=0.0), algorithms=names)

  def other(examples: int) -> float:
    return direct.seconds(examples) - float(costs(examples).seconds[:, 0].sum())

  return costs, other
