"""HALoS in NumPy; see `reference.server` for the signature."""

from reference.buffered_server import of_rows
from reference.collective import Grad, Inner
from reference.history import History


class DelayedNesterov:
  """Collects N differences per momentum update; the rate is e N, as in the authors' code."""

  def __init__(self, z, rate, momentum, every):
    self.z, self.m, self.waiting = z, 0.0 * z, []
    self.rate, self.momentum, self.every = rate, momentum, every

  def apply(self, d):
    self.waiting = [*self.waiting, d]
    step = d
    if len(self.waiting) == self.every:
      self.m, self.waiting = self.momentum * self.m + sum(self.waiting) / self.every, []
      step = step + self.every * self.momentum * self.m
    self.z = self.z - self.rate * step


class Region(DelayedNesterov):
  """A region's server, with its snapshot and the messages that it waits for: [(updates left, what arrives)]."""

  def __init__(self, z, *outer):
    super().__init__(z, *outer)
    self.snapshot, self.updates = z, 0
    self.sent = self.back = None


def halos(
  x0, grad: Grad, *, order, peers, workers: int, inner: Inner, group_size, period, local_rate, local_momentum,
  local_every, merge_every, merge_weight, global_rate, global_momentum, global_every, link, dylu=False,
) -> History:  # fmt: skip
  """Kim et al.: a region sends its progress after K updates, and mixes in the global model when that arrives.

  dylu: True or False for equal speeds, or the number of steps per round of each worker.
  """
  regions = [Region(x0, local_rate, local_momentum, local_every) for _ in range(-(-workers // group_size))]
  top = DelayedNesterov(x0, global_rate, global_momentum, global_every)
  updates = [inner() for _ in range(workers)]
  pulled, steps, rows = [x0] * workers, [0] * workers, []
  for i in order:
    x, region = pulled[i], regions[i // group_size]
    for _ in range(dylu[i] if isinstance(dylu, tuple) else period):
      x, steps[i] = x + updates[i](grad(i, steps[i], x), x), steps[i] + 1
    region.apply(pulled[i] - x)
    pulled[i] = region.z  # before a merge
    region.updates += 1
    if region.updates == merge_every:
      region.sent = (link, region.snapshot - region.z)
    if region.sent:
      wait, u = region.sent
      region.sent = (wait - 1, u)
      if wait == 0:
        top.apply(u)
        region.sent, region.back = None, (link, top.z)
    if region.back:
      wait, z = region.back
      region.back = (wait - 1, z)
      if wait == 0:
        region.z = (1 - merge_weight) * region.z + merge_weight * z
        region.snapshot, region.updates, region.back = region.z, 0, None
    rows.append((x, top.z))
  return of_rows(rows)
