"""How programs are compiled for each kind of device, so that collectives run beside the compute that can hide them.

XLA:GPU makes collectives asynchronous by itself, XLA:CPU never does. XLA:TPU has a schedule with asynchronous
all-reduces only with these options (openxla.org/xla/flags_guidance; MaxText's benchmarks/xla_flags_library.py,
CF_FOR_ALL_REDUCE), and not for arrays that it has combined to one all-reduce, so that the combiner is off.

Two more things that compiled schedules show are in the programs themselves. XLA:TPU hides one long all-reduce better
than several that leave together, and even in a loop, so that what is in flight is packed (`Workers.overlapped_group`).
XLA:GPU, and XLA:TPU with leaves that cannot be packed, overlap no collective with a loop: the steps beside a message
are unrolled (`DeviceFunctions.steps`). docs/howto/dryrun.md has figures.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import jax

ASYNC = {
  "xla_tpu_enable_async_collective_fusion": "true",
  "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
  "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
  "xla_tpu_overlap_compute_collective_tc": "true",
  "xla_enable_async_all_reduce": "true",
}
COMBINER = {  # by the begin of the device's kind; how the combiner is switched off differs
  "TPU v5 lite": {"xla_jf_crs_combiner_threshold_in_bytes": "1"},
  "TPU": {"xla_jf_crs_combiner_threshold_count": "1"},
}


def options(device: Any) -> dict[str, str]:
  """Return the options for programs of such devices (`jax.Device`), of this machine or of a topology."""
  if device.platform != "tpu":
    return {}
  combiner = next(found for kind, found in COMBINER.items() if device.device_kind.startswith(kind))
  return ASYNC | combiner


def compiled(lowered: jax.stages.Lowered, chosen: Mapping[str, str]) -> jax.stages.Compiled:
  """Compile with these options; without any, and a warning, where this compiler does not know one of them."""
  if not chosen:
    return lowered.compile()
  try:
    return lowered.compile(compiler_options=dict(chosen))
  except jax.errors.JaxRuntimeError as error:
    if "No such compile option" not in str(error):
      raise
    told = str(error).partition("\n")[0]
    warnings.warn(f"compiled without the options that overlap collectives: {told}", stacklevel=2)
    return lowered.compile()
