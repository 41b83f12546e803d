"""The quadratic synchronization rule as the loop of its authors' code, in plain Python."""

from bisect import bisect_right


def averages(rate, *, steps, alpha, power, min_h, init_h, warmup):
  """Gu et al.: adjust H after each average; return the numbers of steps after which the models are averaged."""

  def adjusted(step):
    if step < warmup or alpha == 0:
      return init_h
    remaining = steps - step
    h = int((alpha / rate(step)) ** power) if rate(step) > 0 else remaining
    return max(min(max(h, min_h), remaining), 1)

  times, local, h = [], 0, adjusted(0)
  for step in range(steps):
    local += 1
    if local >= h:
      times.append(step + 1)
      local, h = 0, adjusted(step + 1)
  return times


class Period:
  """The period of another reference, which averages if t % period == 0 and counts its rounds as t // period."""

  def __init__(self, times):
    self.times = times

  def __rmod__(self, t):
    return 0 if t in self.times else 1

  def __rfloordiv__(self, t):
    return bisect_right(self.times, t)
