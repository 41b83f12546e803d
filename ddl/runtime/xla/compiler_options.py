"""How programs are compiled for each kind of device, so that collectives run beside the compute that can hide them.

XLA:GPU makes collectives asynchronous by itself, XLA:CPU never does. XLA:TPU has a schedule with asynchronous
all-reduces only with these options (openxla.org/xla/flags_guidance; MaxText's benchmarks/xla_flags_library.py,
CF_FOR_ALL_REDUCE), and not for arrays that it has combined to one all-reduce, so that the combiner is off.

Two more things that compiled schedules show are in the programs themselves. XLA:TPU hides one long all-reduce better
than several that leave together, and even in a loop, so that what is in flight is packed (`Workers.overlapped_group`).
XLA:GPU, and XLA:TPU with leaves that cannot be packed, overlap no collective with a loop: the steps beside a message
are unrolled (`DeviceFunctions.steps`). docs/howto/dryrun.md has figures.
"""

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

GRACE = 10.0  # seconds
OVER = b"\0"  # in place of a signal's number
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


def compiled(lowered: jax.stages.Lowered, chosen: Mapping[str, str] | None = None) -> jax.stages.Compiled:
  """Compile with these options; without any, and a warning, where this compiler does not know one of them."""
  with _ended_by_sigterm():
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


def end_by_sigterm(last_words: Callable[[], object] | None) -> None:
  """Let SIGTERM end the process where a compilation goes on for GRACE seconds after it: Python's handlers wait for it.

  last_words: called before the process ends with 143; None: compilations are waited for again.
  """
  _last_words[:] = [last_words] if last_words else []


_last_words: list[Callable[[], object]] = []


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
  if not _last_words or threading.current_thread() is not threading.main_thread():
    yield
    return
  (reads, writes), over = os.pipe(), threading.Event()
  os.set_blocking(writes, False)

  def watch() -> None:
    while (number := os.read(reads, 1)) != OVER:
      if number == bytes([signal.SIGTERM]) and not over.wait(GRACE):
        _last_words[0]()
        os._exit(128 + signal.SIGTERM)

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    over.set()
    os.write(writes, OVER)
    thread.join()
    os.close(reads)
    os.close(writes)
