"""Create the device topologies of `--topology`: TPU slices with libtpu, GPUs with XLA:GPU."""

import contextlib
import importlib.util
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.experimental import topologies

from ddl.errors import OptionError
from ddl.perf.cluster import Cluster
from ddl.perf.cluster_file import named

DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TPUS, GPUS = DATA["tpu"], DATA["gpu"]


class Target(NamedTuple):
  """The devices to compile for."""

  name: str
  devices: list[Any]  # in an order in which neighbors in the topology are adjacent
  cluster: Cluster | None  # cost model and memory; None for unknown devices


def find(name: str) -> Target:
  """Return the target of `--topology`, such as v5e:2x4 or h200:2x8.

  Raises:
    OptionError: for an unknown name, or if its compiler is not installed.
  """
  kind, _, shape = name.partition(":")
  if kind in TPUS and re.fullmatch(r"\d+(x\d+)+", shape):
    return _tpu(name, kind)
  if kind in GPUS and (match := re.fullmatch(r"([1-9]\d*)x([1-8])", shape)):
    return _gpu(name, kind, int(match[1]), int(match[2]))
  raise OptionError("topology", _known(kind), name)


def cluster_of(device: Any) -> Cluster | None:
  """Return the built-in cluster with this kind of device, or None."""
  known = [*TPUS.values(), *GPUS.values()]
  return next((named(entry["cluster"]) for entry in known if device.device_kind.startswith(entry["kind"])), None)


@contextlib.contextmanager
def as_backend(platform: str) -> Iterator[None]:
  """Make `jax.default_backend()` return the target's platform, because models and user code can depend on it."""
  with mock.patch.object(jax, "default_backend", lambda: platform):
    yield


def _known(kind: str) -> str:
  if kind in TPUS:
    return f"one of {', '.join(f'{kind}:{shape}' for shape in TPUS[kind]['slices'])}"
  if kind in GPUS:
    return f"{kind}:HOSTSxGPUS with 1 to 8 GPUs per host, such as {kind}:2x8"
  slices = ", ".join(f"{name}:SHAPE ({', '.join(entry['slices'])})" for name, entry in TPUS.items())
  return f"{slices}, {' or '.join(f'{name}:HOSTSxGPUS' for name in GPUS)} (for example, h200:2x8)"


def _tpu(name: str, kind: str) -> Target:
  if not importlib.util.find_spec("libtpu"):
    raise _missing(name, "libtpu", "requirements-dryrun.txt")
  for key, value in DATA["libtpu"].items():
    os.environ.setdefault(key, value)
  try:
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    mesh = topologies.make_mesh(topology, (len(topology.devices),), ("chip",))
  except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError, AssertionError) as error:
    reason = str(error).partition("\n")[0]
    raise OptionError("topology", _known(kind), f"{name} ({reason})") from error
  return Target(name, [*np.ravel(mesh.devices)], named(TPUS[kind]["cluster"]))


def _gpu(name: str, kind: str, hosts: int, per_host: int) -> Target:
  if not importlib.util.find_spec("jax_plugins") or not importlib.util.find_spec("jax_plugins.xla_cuda12"):
    raise _missing(name, "JAX's CUDA plugin", "requirements-dryrun-cuda.txt")
  cluster = named(GPUS[kind]["cluster"])
  rates = {"bandwidth": int(cluster.device.memory_bandwidth), "memory": int(cluster.device.memory)}
  spec = DATA["xla_gpu"]["spec"].format(name=GPUS[kind]["name"], **rates)
  topology = topologies.get_topology_desc(platform="cuda", target_config=spec, topology=f"1x{hosts}x{per_host}")
  network = cluster.network
  between = network.between._replace(
    bandwidth=network.between.bandwidth * per_host / network.per_node
  )  # one NIC per GPU
  devices = sorted(topology.devices, key=lambda device: device.id)
  return Target(name, devices, cluster._replace(network=network._replace(between=between, per_node=per_host)))


def _missing(name: str, what: str, file: str) -> OptionError:
  advice = f"Install it with `python -m pip install -r {file} -c constraints.txt`."
  return OptionError("topology", f"one whose compiler ({what}) is installed", name, advice)
