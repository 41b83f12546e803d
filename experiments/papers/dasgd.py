"""Zhou et al. 2020, arXiv 2006.00441: when the exchange of DaSGD is hidden, in the model of its authors' code."""

from ddl.perf import bounds, cluster_file, neural_networks
from ddl.perf.collectives import all_reduce
from ddl.perf.layers import params_bytes
from experiments.papers import page, paleo
from experiments.papers.page import Config, Section, table


def section(config: Config) -> Section:
  """Seconds of a step and of an exchange, the smallest delay, and the share of time that is spent computing."""
  rows = []
  for title, (name, flattened) in config.networks.items():
    message = paleo.tree_seconds(
      params_bytes(neural_networks.table(name)), config.workers, paleo.BANDWIDTHS[config.bandwidth]
    )
    for batch in config.batches:
      step = paleo.step_seconds(neural_networks.table(name), batch, flattened=flattened)
      rows.append(_cells(config, f"{title}, batch {batch}", message, step))
  head = (
    "", "reported", "predicted: 100 % hidden when", f"hidden with d = {config.delay}", "step", "exchange",
    "synchronous SGD", f"local SGD, tau = {config.period}", f"DaSGD, tau = {config.period}, d = {config.delay}",
  )  # fmt: skip
  nbytes = params_bytes(neural_networks.table(config.networks[config.compared][0]))
  tree = paleo.tree_seconds(nbytes, config.workers, paleo.BANDWIDTHS[config.bandwidth])
  best = all_reduce(nbytes, config.workers, cluster_file.named(config.cluster).network)
  return page.read(
    "dasgd", config=config, gigabits=paleo.BANDWIDTHS[config.bandwidth] * 8e-9, cases=table(head, rows),
    count=len(rows), enough=sum(row[3] == "100 %" for row in rows), best_ms=1e3 * best, tree_ms=1e3 * tree,
    ratio=tree / best,
  )  # fmt: skip


def _cells(config: Config, what: str, message: float, step: float) -> tuple[str, ...]:
  least = bounds.smallest_delay(message, step)
  schedules = ((1, 0), (config.period, 0), (config.period, config.delay))
  busy = [1 - bounds.exposed_share(message, step, period=period, delay=delay) for period, delay in schedules]
  hidden = min(1.0, config.delay * step / message)
  when = f"{least} <= d <= tau" + (f"; not with tau = {config.period}" if least > config.period else "")
  times = (f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{1e3 * seconds:.0f} ms" for seconds in (step, message))
  return (what, "100 %", when, f"{100 * hidden:.0f} %", *times, *(f"{100 * share:.0f} %" for share in busy))
