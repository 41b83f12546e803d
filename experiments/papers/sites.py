"""Compare published with predicted throughput over slow links: between cloud sites, and on a rate-limited link."""

from typing import NamedTuple

from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.collectives import all_reduce
from experiments.papers import page
from experiments.papers.page import Config, Section


class SitePoint(NamedTuple):
  """A published and a predicted value.

  Both are the throughput at several sites in examples/s, or the percentage of a round spent computing.
  """

  name: str
  published: float
  predicted: float
  baseline: float  # the value without the slow link: at one site, or with exchanges that take no time

  @property
  def error(self) -> float:
    """Relative error: predicted / published - 1."""
    return self.predicted / self.published - 1


def section(config: Config) -> Section:
  """Build the section: median and maximum errors, and all points."""
  sites, shaped = site_points(config.google), shaped_link_points(config.shaped)
  errors = {f"a shaped link, {name}": [abs(point.error) for point in points] for name, points in shaped.items()}
  errors = {"sites of a cloud": [abs(point.error) for point in sites], **errors}
  one_site = [abs(point.baseline / point.published - 1) for point in sites]
  return page.read("sites", config=config, sites=sites, shaped=shaped, errors=errors, one_site=one_site)


def site_points(google: Config) -> list[SitePoint]:
  """Predict the throughput of GPUs at several sites from that of as many GPUs at one site."""
  points = []
  for network, sites, each, published in google.points:
    rate = google.rates[network][sites * each]
    step = google.examples / rate + extra_seconds(google, network, sites, each)
    points.append(SitePoint(f"{network}, {sites} x {each}", published, google.examples / step, rate))
  return points


def extra_seconds(google: Config, network: str, sites: int, each: int) -> float:
  """Return how many seconds longer an exchange takes across sites than within one site. each: GPUs per site.

  Each machine, with one GPU, sends one stream to every other site at the measured rate. The site with the smallest sum
  of rates determines the bandwidth, and the longest ping the latency.
  """
  nbytes, workers = google.parameters[network] * google.value_bytes, sites * each
  inside = LinkModel(google.inside.ping / 2, google.inside.bandwidth)
  names = google.sites[:sites]
  streams = {pair: stream for pair, stream in google.streams.items() if {*pair.split("-")} <= {*names}}
  least = min(sum(bits for pair, (bits, _) in streams.items() if name in pair.split("-")) for name in names)
  ping = max(ping for _, ping in streams.values())
  between = LinkModel(ping / 2, each * least / 8)
  system_seconds = all_reduce(nbytes, workers, NetworkModel(between, inside, each, sites=sites))
  return system_seconds - all_reduce(nbytes, workers, NetworkModel(inside))


def shaped_link_points(shaped: Config) -> dict[str, list[SitePoint]]:
  """Predict for each algorithm the percentage of a round that its workers spend computing.

  For rounds of H steps, each of t seconds, it is 100 H t / (H t + seconds of the exchange).
  """
  by_link: dict[str, list[SitePoint]] = {}
  for name, by_steps in shaped.shares.items():
    for steps, shares in by_steps:
      computing = steps * shaped.step
      for bandwidth, published in zip(shaped.bandwidths, shares, strict=True):
        exchange = all_reduce(shaped.nbytes, shaped.hosts, NetworkModel(LinkModel(shaped.latency, bandwidth / 8)))
        share = 100 * computing / (computing + exchange)
        by_link.setdefault(name, []).append(SitePoint(str(steps), published, share, 100.0))
  return by_link
