"""What a training process keeps of its state in memory that its supervisor shares, and that outlives it."""

import json
import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

SLOTS = 2  # no process is more than one round ahead of another: each round begins when all have kept the one before it
NONE = -1  # the step of an empty slot


class Memory:
  """The states after the last two rounds, and a sign of life. Made before the fork of the process that writes it."""

  def __init__(self) -> None:
    """Hold nothing."""
    self._shared = mmap.mmap(-1, mmap.PAGESIZE)
    self._figures = np.frombuffer(self._shared, np.int64, 2 * SLOTS).reshape(SLOTS, 2)  # (step, bytes) of each slot
    self._seen = np.frombuffer(self._shared, np.float64, 1, 2 * SLOTS * 8)
    self._files = [_file() for _ in range(SLOTS)]
    self._maps: list[mmap.mmap | None] = [None] * SLOTS
    self.clear()

  def clear(self) -> None:
    """Hold nothing any more."""
    self._figures[:] = NONE, 0
    self.beat()

  def forget_after(self, step: int) -> None:
    """Drop the states of later steps, which are made anew."""
    self._figures[self._figures[:, 0] > step] = NONE, 0

  def beat(self) -> None:
    """Note that the process that writes is alive."""
    self._seen[0] = time.monotonic()

  def silence(self) -> float:
    """Return the seconds since the last sign of life."""
    return time.monotonic() - float(self._seen[0])

  def held(self) -> list[int]:
    """Return the steps whose state is there, the newest last."""
    return sorted(int(step) for step, _ in self._figures if step != NONE)

  def write(self, step: int, text: str, arrays: Sequence[np.ndarray]) -> None:
    """Keep a state in place of the older one, which stays if this process dies here. text: beside its arrays."""
    slot = int(self._figures[:, 0].argmin())
    told = {"text": text, "arrays": [(x.dtype.name, x.shape) for x in arrays]}
    parts = [np.frombuffer(json.dumps(told).encode(), np.uint8), *map(_bytes, arrays)]
    self._figures[slot] = NONE, 0
    whole, at = self._map(slot, 8 + sum(part.size for part in parts)), 8
    whole[:8] = np.frombuffer(np.int64(parts[0].size).tobytes(), np.uint8)
    for part in parts:
      whole[at : at + part.size] = part
      at += part.size
    self._figures[slot, 1] = at
    self._figures[slot, 0] = step  # last: now it is whole

  def read(self, step: int) -> tuple[str, list[np.ndarray]]:
    """Return what was kept of this step, as copies. KeyError if it is not there."""
    slot = next((slot for slot, (there, _) in enumerate(self._figures) if there == step), None)
    if slot is None:
      raise KeyError(step)
    whole, at = self._map(slot, int(self._figures[slot, 1])), 8
    size = int(whole[:8].view(np.int64)[0])
    told = json.loads(whole[at : at + size].tobytes())
    at, arrays = at + size, []
    for name, shape in told["arrays"]:
      kind = _dtype(name)
      size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
      arrays.append(np.frombuffer(whole[at : at + size].tobytes(), kind).reshape(shape))
      at += size
    return told["text"], arrays

  def _map(self, slot: int, size: int) -> np.ndarray:
    """Return a slot's bytes, of which there are at least so many now."""
    there = os.fstat(self._files[slot].fileno()).st_size
    if size > there:
      os.truncate(self._files[slot].fileno(), size)
    held = self._maps[slot]
    if held is None or len(held) < size:
      self._maps[slot] = held = mmap.mmap(self._files[slot].fileno(), max(size, there))
    return np.frombuffer(held, np.uint8)


def _file() -> BinaryIO:
  """Return a file without a name, in memory where the system has such files."""
  if hasattr(os, "memfd_create"):
    return os.fdopen(os.memfd_create("ddl"), "rb+")
  return tempfile.TemporaryFile()


def _bytes(x: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _dtype(name: str) -> np.dtype:
  """Return the type of this name; those that NumPy does not have are of ml_dtypes."""
  import ml_dtypes

  return np.dtype(getattr(ml_dtypes, name, name))
