"""Delays and periods of a plan that hide their exchanges, with their rows."""

from ddl.perf.planning import delays
from ddl.perf.planning.rows import Row
from ddl.perf.units import percent, seconds_text

LONG = 500  # steps of a period, as in DiLoCo


def choose_periods(
  message: float, visit: float, served: float, step: float, *, share: float, overlap: bool
) -> tuple[int, tuple[int, int, int, int], list[Row]]:
  """Return DaSGD's delay, the periods of DaSGD, local SGD, EASGD and asynchronous EASGD, and the rows of all.

  Args:
    message, visit: seconds of an all-reduce, and of a worker's visit to the servers.
    served: seconds that the servers are busy with the visits of all workers.
    step: seconds of a local step.
    share: of a round spent waiting, at most.
    overlap: whether an exchange can run beside the steps.
  """
  hidden = int(overlap)  # steps beside which an exchange can run, of the algorithms whose delay is 1
  delay = delays.smallest_delay(message, step) if overlap else 0
  periods, rows = [], [_delay(delay, message, step, overlap)]
  for name, seconds, steps in (
    ("DaSGD", message, delay),
    ("local SGD", message, 0),
    ("EASGD", message, hidden),
    ("asynchronous EASGD", visit, hidden),
  ):
    periods.append(delays.smallest_period(seconds, step, share=share, delay=steps))
    rows.append(_period(f"period ({name})", periods[-1], steps, seconds, step, share))
  queue = delays.smallest_queued_period(served, step, share=share)
  if queue > periods[-1]:
    periods[-1], rows[-1] = queue, _queued(rows[-1].quantity, queue, served, step, share)
  dasgd, local, easgd, served_by = periods
  return delay, (dasgd, local, easgd, served_by), rows


def _delay(delay: int, message: float, step: float, overlap: bool) -> Row:
  if not overlap:
    why = f"an exchange of {seconds_text(message)} never runs beside the steps here"
    return Row("delay (DaSGD)", str(delay), why, "a delay would hide nothing")
  why = f"d = ceil(T_comm / T_step) = ceil({seconds_text(message)} / {seconds_text(step)})"
  return Row("delay (DaSGD)", str(delay), why, "the exchange" if delay else "nothing: there is no exchange")


def _queued(quantity: str, period: int, served: float, step: float, share: float) -> Row:
  why = (
    f"the servers are busy for {seconds_text(served)} with the visits of all workers, so that tau steps are a share "
    f"1 - s = {percent(1 - share)} of a worker round: tau >= (1 - s) {seconds_text(served)} / T_step = "
    f"{served * (1 - share) / step:.4g}"
  )
  return Row(quantity, str(period), why, "the servers' queue" + _too_slow(period))


def _period(quantity: str, period: int, delay: int, message: float, step: float, share: float) -> Row:
  exposed = max(0.0, message - delay * step)
  if not exposed:
    why = f"max(1, d) = {period}: a delay of {delay} hides the exchange"
    return Row(quantity, str(period), why, "the delay" + _too_slow(period))
  why = (
    f"e = T_comm - {delay} T_step = {seconds_text(exposed)} of waiting, a share s = {percent(share)} of a round at "
    f"most: tau >= e (1 - s) / (s T_step) = {exposed * (1 - share) / (share * step):.4g}"
  )
  return Row(quantity, str(period), why, "the exposed exchange" + _too_slow(period))


def _too_slow(period: int) -> str:
  if period <= LONG:
    return ""
  return f"; more than the {LONG} steps of DiLoCo (arXiv 2311.08105): the network is too slow for this job"
