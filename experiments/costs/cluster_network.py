"""The network of a cluster's file: links of each level, sites of several nodes, and what lies between the nodes."""

from collections.abc import Mapping
from typing import Any

from ddl.perf.hardware.library import NCCL
from ddl.perf.hardware.network import Link, Network, Uplink
from ddl.perf.hardware.torus import Torus

LIBRARIES = {"": None, "NCCL": NCCL}
LEVELS = ("inside", "between")  # a node; nodes


def network(nodes: Mapping[str, Any], link: Mapping[str, Link], values: Mapping[str, Mapping[str, Any]]) -> Network:
  """Return the network. nodes: of [nodes]; link: by the name behind "link."; values: of [uplink] and [torus].

  Raises:
    ValueError: one line, for a link that is missing, or figures that cannot be or do not go together.
  """
  per_node, count, sites = (nodes[key] for key in ("devices", "count", "sites"))
  if count and sites > count:
    raise ValueError(f"nodes.sites is {sites}; invalid: must be at most nodes.count, {count}")
  if per_node > 1 and "device" not in link:
    raise ValueError(f"[link.device] is missing, as a node has {per_node} devices; it has latency and bandwidth")
  if "node" not in link and (count != 1 or per_node == 1):
    raise ValueError("[link.node] is missing; it has latency and bandwidth between nodes")
  if nodes["library"] not in LIBRARIES:
    raise ValueError(f"nodes.library is '{nodes['library']}'; invalid: must be NCCL, or left out")
  if not all(level in LEVELS for level in nodes["reduces"]):
    raise ValueError(f"nodes.reduces is {nodes['reduces']!r:.80}; invalid: must have of {', '.join(LEVELS)} alone")
  found = Network(
    link.get("node") or link["device"],
    link["device"] if per_node > 1 else None,
    per_node,
    sites,
    card=float(nodes["card"]) or None,
    uplink=_uplink(values.get("uplink")),
    torus=_torus(values.get("torus"), per_node),
    reduces=tuple(nodes["reduces"]),
    library=LIBRARIES[nodes["library"]],
  )
  return _in_sites(found, count, link["site"]) if "site" in link else found


def _uplink(values: Mapping[str, Any] | None) -> Uplink | None:
  if values is None:
    return None
  return Uplink(values["nodes"], values["share"])


def _torus(values: Mapping[str, Any] | None, per_node: int) -> Torus | None:
  if values is None:
    return None
  if per_node > 1:
    raise ValueError(f"[torus] is of single devices, and nodes.devices is {per_node}; leave one of them out")
  return Torus(values["axes"], values["ring"])


def _in_sites(network: Network, count: int, site: Link) -> Network:
  """Return the network whose nodes are the sites, each with the devices of all its nodes.

  A ring of a site's D = d m devices then takes as long as one in its nodes of d and one between its m nodes:
  (D - 1) L = (d - 1) L_d + (m - 1) L_n, and (D - 1) / (D B) = (d - 1) / (d B_d) + (m - 1) / (m B_n).
  """
  m, rest = divmod(count, network.sites)
  if network.sites == 1 or not count or rest:
    raise ValueError(
      f"[link.site] is between sites, and nodes.count is {count}, nodes.sites {network.sites}; give two or more sites "
      "of as many nodes each"
    )
  if network.library or network.uplink or network.torus or network.reduces:
    raise ValueError("[link.site] goes with neither nodes.library, nodes.reduces, [uplink] nor [torus]")
  d, near, nodes = network.per_node, network.inside or network.between, network.between
  steps = d * m - 1
  if not steps:
    return network._replace(between=site)
  latency = ((d - 1) * near.latency + (m - 1) * nodes.latency) / steps
  per_byte = (d - 1) / (d * near.bandwidth) + (m - 1) / (m * nodes.bandwidth)
  inside = Link(latency, steps / (d * m) / per_byte, min(near.duplex, nodes.duplex) if m > 1 else near.duplex)
  return network._replace(between=site, inside=inside, per_node=d * m)
