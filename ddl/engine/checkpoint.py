"""Checkpoints of a run, written by orbax: the carry (training state) as arrays, and numbers as JSON."""

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import lax

from ddl.hosts import exchange

MAX_TO_KEEP = 2  # a run resumes from the second newest checkpoint if the newest is damaged
MARGIN = 2**17  # maximum bytes of a checkpoint in addition to its arrays
STALLED = 5.0  # seconds to wait for a write before checking whether the folder still accepts files


class Damaged(ValueError):
  """Raised when a checkpoint cannot be read."""


class Checkpoints:
  """The checkpoints in the folder of one run; orbax writes each of them atomically."""

  def __init__(self, folder: Path):
    """Create the folder if it does not exist."""
    options = ocp.CheckpointManagerOptions(max_to_keep=MAX_TO_KEEP, create=True, enable_async_checkpointing=True)
    self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

  def steps(self) -> list[int]:
    """Return the steps of the checkpoints, newest first."""
    return sorted(self._manager.all_steps(), reverse=True)

  def save(self, step: int, carry: Any, figures: dict[str, Any], wait: bool = False) -> None:
    """Save a checkpoint in the background unless it is already saved; the carry may be donated right afterwards.

    figures: numbers to save as JSON. wait: whether to wait until the checkpoint is written.
    """
    if self._manager.latest_step() == step:
      return
    leaves = _plain(carry)
    self._wait()
    self._check_room(sum(x.nbytes for x in leaves.values()))
    self._manager.save(
      step,
      args=ocp.args.Composite(
        carry=ocp.args.StandardSave(leaves),
        figures=ocp.args.JsonSave(figures),
        checksums=ocp.args.JsonSave(_checksums(leaves)),
      ),
    )
    if wait:
      self._wait()

  def _wait(self) -> None:
    """Wait for pending writes. If this process's write failed, raise its error at once: waiting would cause a deadlock.

    If orbax's own thread sees the error first, it does not report it but waits for the other processes, for up to 20
    minutes. Therefore a long wait also ends if the folder accepts no more files: the disk or the quota is full, or the
    file system became read-only.
    """
    checked = time.monotonic()
    while self._manager.is_saving_in_progress():
      self._manager.check_for_errors()
      if time.monotonic() > checked + STALLED:
        self._check_writable()
        checked = time.monotonic()
      time.sleep(0.002)
    self._manager.wait_until_finished()

  def _check_room(self, nbytes: int) -> None:
    """Raise OSError if the bytes do not fit on the disk; orbax would print pages of errors from several threads."""
    if shutil.disk_usage(self._manager.directory).free < nbytes + MARGIN:
      text = f"no space left on device for a checkpoint of {nbytes:,} bytes"
      raise OSError(errno.ENOSPC, text, str(self._manager.directory))

  def _check_writable(self) -> None:
    """Raise OSError if the folder accepts no new file."""
    try:
      with tempfile.TemporaryFile(dir=self._manager.directory) as file:
        file.write(bytes(MARGIN))
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      text = f"cannot write a checkpoint ({str(error.strerror).lower()})"
      raise OSError(error.errno, text, str(self._manager.directory)) from error

  def figures(self, step: int) -> dict[str, Any]:
    """Return the `figures` of the checkpoint of `step`. Raises Damaged if they cannot be read."""
    return self._read(step, "figures", ocp.JsonCheckpointHandler(), ocp.args.JsonRestore())

  def carry(self, step: int, like: Any) -> Any:
    """Return the carry of the checkpoint of `step`. Raises Damaged if it cannot be read.

    like: the carry's shapes, types and shardings (`jax.ShapeDtypeStruct`), or arrays.
    """
    checksums = self._read(step, "checksums", ocp.JsonCheckpointHandler(), ocp.args.JsonRestore())
    leaves = self._read(step, "carry", ocp.StandardCheckpointHandler(), ocp.args.StandardRestore(_plain(like)))
    if checksums != _checksums(leaves):
      raise Damaged(f"{self._manager.directory / str(step)} cannot be read (wrong checksum)")
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in _names(like)])

  def _read(self, step: int, item: str, handler: Any, args: Any) -> Any:
    """Read an item; if one process fails, raise Damaged in all of them, so that none waits for that process."""
    path, restored, reason = self._manager.directory / str(step), None, ""
    try:
      with _patient_loops():
        restored = handler.restore(path / item, args=args)
    except Exception as error:  # orbax, tensorstore and json raise different types
      reason = f"{type(error).__name__}: {error}".split("\n")[0].split(". ")[0][:200]
    if reasons := [text for text in exchange(reason) if text]:
      raise Damaged(f"{path} cannot be read ({reasons[0]})")
    return restored

  def delete(self, step: int) -> None:
    """Delete the checkpoint of `step`."""
    self._manager.delete(step)

  def close(self) -> None:
    """Wait for pending writes."""
    self._wait()
    self._manager.close()


class _PatientLoop(asyncio.SelectorEventLoop):
  """An event loop that waits for its tasks before closing."""

  def close(self) -> None:
    if not self.is_closed() and (tasks := asyncio.all_tasks(self)):
      self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    super().close()


class _PatientLoops(asyncio.DefaultEventLoopPolicy):
  def new_event_loop(self) -> asyncio.AbstractEventLoop:
    return _PatientLoop()


@contextlib.contextmanager
def _patient_loops() -> Iterator[None]:
  """Make orbax wait for all reads if one fails; otherwise it closes their event loop, and pending reads log errors."""
  before = asyncio.get_event_loop_policy()
  asyncio.set_event_loop_policy(_PatientLoops())
  try:
    yield
  finally:
    asyncio.set_event_loop_policy(before)


def _checksums(leaves: dict[str, Any]) -> dict[str, int]:
  """Return a checksum of each array, independent of its sharding; orbax detects truncation, but not changed bits."""
  return {name: int(x) for name, x in jax.device_get(_on_devices(leaves)).items()}


@jax.jit
def _on_devices(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """Return sum_i (2 i + 1) w_i mod 2^32 over an array's words w; odd factors detect any single changed word."""

  def one(x: jax.Array) -> jax.Array:
    x = x.astype(jnp.uint8) if x.dtype == bool else x
    word = jnp.dtype(f"uint{min(8 * x.dtype.itemsize, 32)}")
    words = lax.bitcast_convert_type(x, word).astype(jnp.uint32)  # [..., 2] for 64-bit types
    place = jnp.zeros((), jnp.uint32)
    for axis, size in enumerate(words.shape):  # a reshape would gather sharded arrays
      place = place * np.uint32(size) + lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return jnp.sum((2 * place + 1) * words, dtype=jnp.uint32)

  return jax.tree.map(one, leaves)


def _names(tree: Any) -> list[str]:
  return [f"{i:04d}" for i in range(len(jax.tree.leaves(tree)))]


def _plain(tree: Any) -> dict[str, Any]:
  """Return the leaves, named by their position in the tree; names from optax states could change between versions."""
  return dict(zip(_names(tree), jax.tree.leaves(tree), strict=True))
