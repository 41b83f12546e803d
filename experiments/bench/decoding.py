"""Measure the rate at which one thread, several threads, grain's threads and grain's processes decode JPEG images.

The decoders take turns.

python -m experiments.bench.decoding [side of the images in pixels] [number of threads, and of processes]
"""

import io
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grain
import numpy as np
from absl import flags
from PIL import Image

from ddl.data import source

IMAGES = 256
TURNS = 7  # measurements of each decoder
BATCH = 64  # images
PIECE = 32  # images per task of a grain thread, as in ddl/data/tfds.py
QUALITY = 90
DRAINED = 0.7  # seconds discarded first, in which a decoder uses up the images that it decoded during other turns


def files(side: int) -> list[bytes]:
  """Return IMAGES JPEG files of smoothed noise, with about 3 bits per pixel."""
  rng, encoded = np.random.default_rng(0), []
  for _ in range(IMAGES):
    coarse = Image.fromarray(rng.integers(0, 256, (max(1, side // 8),) * 2 + (3,), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=QUALITY)
    encoded.append(file.getvalue())
  return encoded


def decode(file: bytes) -> np.ndarray:
  """Decode a JPEG file to an image [side, side, 3] uint8."""
  return np.asarray(Image.open(io.BytesIO(file)))


def decoders(encoded: Sequence[bytes], count: int) -> dict[str, Callable[[], int]]:
  """Return the decoders by name: functions that decode a batch of images to float32 and return the number of images.

  Worker processes prefetch, as they would in training; threads decode only during a call.
  """
  pool, starts = ThreadPoolExecutor(count), itertools.count(0, BATCH)

  def batch() -> list[bytes]:
    first = next(starts)
    return [encoded[index % IMAGES] for index in range(first, first + BATCH)]

  def pieces() -> Iterator[np.ndarray]:
    files = batch()
    cut = grain.MapDataset.source([files[start : start + PIECE] for start in range(0, BATCH, PIECE)])
    return itertools.chain.from_iterable(cut.map(lambda piece: list(map(decode, piece))).to_iter_dataset())

  ahead = grain.MultiprocessingOptions(num_workers=count, per_worker_buffer_size=2)
  stream: Iterator[Any] = iter(
    grain.MapDataset.source(encoded).map(decode).repeat().to_iter_dataset().batch(BATCH).mp_prefetch(ahead)
  )
  images: dict[str, Callable[[], Iterable[np.ndarray]]] = {
    "one thread": lambda: map(decode, batch()),
    f"{count} threads": lambda: pool.map(decode, batch()),
    "grain's threads, one image each": lambda: grain.MapDataset.source(batch()).map(decode).to_iter_dataset(),
    f"grain's threads, {PIECE} images each": pieces,
  }
  calls = {name: lambda decoded=decoded: len(source.pixels(np.stack([*decoded()]))) for name, decoded in images.items()}
  return calls | {f"{count} worker processes": lambda: len(source.pixels(next(stream)))}


def rate(call: Callable[[], int], seconds: float) -> float:
  """Return the images per second of repeated calls."""
  began, done = time.perf_counter(), 0
  while (passed := time.perf_counter() - began) < seconds:
    done += call()
  return done / passed


def main(side: int = 224, count: int = os.cpu_count() or 1) -> None:
  """Print each decoder's median rate and the median of its ratio to the rate of one thread in the same turn."""
  encoded = files(side)
  calls = decoders(encoded, count)
  turns = [{name: _turn(call) for name, call in calls.items()} for _ in range(TURNS + 1)][1:]  # the first is warm-up
  first = next(iter(calls))
  print(f"{side} x {side} pixels, {sum(map(len, encoded)) / IMAGES / 1e3:.1f} kB each, {os.cpu_count()} cores")
  for name in calls:
    median = statistics.median(turn[name] for turn in turns)
    print(f"{name:34}{median:8,.0f} images/s{statistics.median(turn[name] / turn[first] for turn in turns):7.2f}")


def _turn(call: Callable[[], int]) -> float:
  rate(call, DRAINED)
  return rate(call, 1.5)


if __name__ == "__main__":
  flags.FLAGS(sys.argv[:1])  # grain's worker processes read absl flags
  main(*map(int, sys.argv[1:]))
