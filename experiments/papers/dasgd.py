"""Zhou et al. 2020, arXiv 2006.00441: when the exchange of DaSGD is hidden, in the model of its authors' code."""

from ddl.perf import hardware
from ddl.perf.comm.collectives import all_reduce
from ddl.perf.papers import paleo
from ddl.perf.planning import delays
from ddl.perf.tables import TABLES
from ddl.perf.tables.totals import params_bytes
from experiments.papers.page import Config, Section, table


def section(config: Config) -> Section:
  """Seconds of a step and of an exchange, the smallest delay, and the share of time that is spent computing."""
  rows = []
  for title, (name, flattened) in config.networks.items():
    message = paleo.tree_seconds(params_bytes(TABLES[name]), config.workers, paleo.BANDWIDTHS[config.bandwidth])
    for batch in config.batches:
      step = paleo.step_seconds(TABLES[name], batch, flattened=flattened)
      rows.append(_cells(config, f"{title}, batch {batch}", message, step))
  head = (
    "", "reported", "predicted: 100 % hidden when", f"hidden with d = {config.delay}", "step", "exchange",
    "synchronous SGD", f"local SGD, tau = {config.period}", f"DaSGD, tau = {config.period}, d = {config.delay}",
  )  # fmt: skip
  nbytes, network = params_bytes(TABLES[config.networks[config.compared][0]]), hardware.named(config.cluster).network
  tree = paleo.tree_seconds(nbytes, config.workers, paleo.BANDWIDTHS[config.bandwidth])
  best = all_reduce(nbytes, config.workers, network)
  enough = sum(row[3] == "100 %" for row in rows)
  remarks = (
    table(head, rows),
    f"The last three columns are shares of the time spent computing, on {config.workers} workers in nodes of 8 V100, "
    f"{paleo.BANDWIDTHS[config.bandwidth] * 8e-9:g} Gb/s between them.",
    "*What is not known.* The claim is the abstract's, for no certain network, batch, bandwidth or delay; so no "
    "error is counted. The networks and the machine are those of the authors' version of PALEO.",
    f"*What follows.* All is hidden where d >= exchange / step and d <= tau: with d = {config.delay} in {enough} of "
    f"{len(rows)} cases. It is a condition that d can meet, if tau is large enough, not a property of the method.",
    "*Where it is off.* Pooling, concatenation and dropout are left out, so that steps are a few percent too short. "
    "The authors' V100 has 7.8 TFLOP/s, its float64 peak: in float32 steps are up to half as long and d up to twice. "
    "A hop between nodes has no latency. An exchange is by the tree of the authors' PALEO, whole messages at each "
    f"level; the cheapest all-reduce of `ddl.perf.comm.collectives` on `{config.cluster}` takes {1e3 * best:.0f} ms "
    f"for {config.compared} instead of {1e3 * tree:.0f}, {tree / best:.1f} times less. An exchange that is so much "
    "shorter needs a smaller d, or hides in more cases with the same.",
  )
  fitted = "nothing."
  return Section("DaSGD: when the exchange is hidden", "configs/reproduce_dasgd.py", fitted, [], remarks=remarks)


def _cells(config: Config, what: str, message: float, step: float) -> tuple[str, ...]:
  least = delays.smallest_delay(message, step)
  schedules = ((1, 0), (config.period, 0), (config.period, config.delay))
  busy = [1 - delays.exposed_share(message, step, period=period, delay=delay) for period, delay in schedules]
  hidden = min(1.0, config.delay * step / message)
  when = f"{least} <= d <= tau" + (f"; not with tau = {config.period}" if least > config.period else "")
  times = (f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{1e3 * seconds:.0f} ms" for seconds in (step, message))
  return (what, "100 %", when, f"{100 * hidden:.0f} %", *times, *(f"{100 * share:.0f} %" for share in busy))
