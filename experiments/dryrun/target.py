"""The devices of `--topology`, as the compilers describe them: TPU slices through libtpu, GPUs through XLA:GPU."""

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.experimental import topologies

from ddl.perf.cluster import Cluster
from ddl.perf.cluster_file import named
from ddl.perf.device import Device

TPUS = {"v5e": "tpu_v5e", "v5p": "tpu_v5p"}  # name in topologies -> cluster
SLICES = {  # that Cloud TPU has of them
  "v5e": ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
  "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
}
GPUS = {"h100": ("h100_ib400", "NVIDIA H100 80GB HBM3"), "h200": ("h200_ib400", "NVIDIA H200")}
QUIET = {
  "TPU_SKIP_MDS_QUERY": "1",  # else libtpu asks a cloud's metadata server for its own slice
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_STDERR_LOG_LEVEL": "3",
  "TPU_MIN_LOG_LEVEL": "3",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # there is no device that two processes could both open
}
# As openxla/xla has them in xla/backends/gpu/target_config/specs/h100_sxm.txtpb and h200.txtpb.
GPU = """
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
  memory_bandwidth: {bandwidth}  l2_cache_size: 52428800  device_memory_size: {memory}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  cuda_compute_capability {{ major: 9 }}
  device_vendor: "NVIDIA Corporation"  name: "{name}"  model_str: "sm_9.0"  device_address_bits: 64
  pcie_bandwidth: 34359738368  ecc_enabled: true
  driver_version: "12.9.0"  runtime_version: "12.9.0"  compile_time_toolkit_version: "12.9.0"  dnn_version: "9.8.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""


KINDS = {"TPU v5 lite": "tpu_v5e", "TPU v5": "tpu_v5p", "NVIDIA H100": "h100_ib400", "NVIDIA H200": "h200_ib400"}


class Target(NamedTuple):
  """Devices to compile for."""

  name: str
  devices: list[Any]  # neighbours beside each other
  cluster: Cluster | None  # prices and memory; None where they are not known


def find(name: str) -> Target:
  """Return the target of `--topology`.

  Raises:
    ValueError: for a name that is unknown, or whose compiler is not installed.
  """
  kind, _, shape = name.partition(":")
  if kind in TPUS and re.fullmatch(r"\d+(x\d+)+", shape):
    return _tpu(name, kind)
  if kind in GPUS and (found := re.fullmatch(r"([1-9]\d*)x([1-8])", shape)):
    return _gpu(name, kind, int(found[1]), int(found[2]))
  raise ValueError(f"--topology={name} is unknown; {_known(kind)}")


def cluster_of(device: Any) -> Cluster | None:
  """The cluster of such devices, or None."""
  return next((named(name) for kind, name in KINDS.items() if device.device_kind.startswith(kind)), None)


@contextlib.contextmanager
def as_backend(platform: str) -> Iterator[None]:
  """Within it `jax.default_backend()` is the target's, by which models and users choose between programs."""
  with mock.patch.object(jax, "default_backend", lambda: platform):
    yield


def _known(kind: str) -> str:
  if kind in SLICES:
    return f"{kind} has {', '.join(f'{kind}:{shape}' for shape in SLICES[kind])}"
  if kind in GPUS:
    return f"{kind} has {kind}:HOSTSxGPUS with 1 to 8 GPUs a host, such as {kind}:2x8"
  slices = ", ".join(f"{name}:{shapes[0]} to {name}:{shapes[-1]}" for name, shapes in SLICES.items())
  return f"there are {slices}, {' and '.join(f'{name}:HOSTSxGPUS' for name in GPUS)}, such as h200:2x8"


def _tpu(name: str, kind: str) -> Target:
  if not importlib.util.find_spec("libtpu"):
    raise ValueError(_missing(name, "libtpu", "requirements-dryrun.txt"))
  for key, value in QUIET.items():
    os.environ.setdefault(key, value)
  try:
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    mesh = topologies.make_mesh(topology, (len(topology.devices),), ("chip",))
  except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError, AssertionError) as error:
    told = str(error).partition("\n")[0]
    raise ValueError(f"--topology={name}: {told}; {_known(kind)}") from error
  return Target(name, [*np.ravel(mesh.devices)], named(TPUS[kind]))


def _gpu(name: str, kind: str, hosts: int, each: int) -> Target:
  if not importlib.util.find_spec("jax_plugins") or not importlib.util.find_spec("jax_plugins.xla_cuda12"):
    raise ValueError(_missing(name, "JAX's CUDA plugin", "requirements-dryrun-cuda.txt"))
  cluster, title = named(GPUS[kind][0]), GPUS[kind][1]
  device: Device = cluster.device
  spec = GPU.format(name=title, bandwidth=int(device.memory_bandwidth), memory=int(device.memory))
  topology = topologies.get_topology_desc(platform="cuda", target_config=spec, topology=f"1x{hosts}x{each}")
  network = cluster.network
  between = network.between._replace(bandwidth=network.between.bandwidth * each / network.per_node)  # an adapter a GPU
  devices = sorted(topology.devices, key=lambda device: device.id)
  return Target(name, devices, cluster._replace(network=network._replace(between=between, per_node=each)))


def _missing(name: str, what: str, file: str) -> str:
  how = f"python -m pip install -r {file} -c constraints.txt"
  return f"--topology={name} needs {what}, which is not installed here: {how}"
