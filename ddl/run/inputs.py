"""Fingerprint the inputs of a run other than its config: examples, files and user-defined code.

The file INPUTS in a run's folder records the fingerprints. Resuming with changed inputs is an error unless the user
allows it; the change is then recorded.

A data set of up to WHOLE bytes is hashed completely, in about a second. The hash of a larger or lazily read data set
covers evenly spaced examples, and the names, sizes and bytes (but not the modification times) of the files that the
settings name.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files
from ddl.api import Data, Source
from ddl.config import trusted_code, user_code
from ddl.config.experiment import PARTS, Experiment, Part
from ddl.data import image_folder, stream
from ddl.data.token_files import META, TEST, TRAIN
from ddl.run.folder import ABOUT, COMPARISON, EXPERIMENT, INPUTS, MODEL, STUDY, recorded_inputs
from ddl.run.processes import say

SPLITS = {"train": "training examples", "test": "test examples", "validation": "validation examples"}
WHOLE = 2**30  # bytes; larger inputs are sampled
SAMPLE, BLOCK = 2**26, 2**14  # bytes of a sample, and of each block of a sample of files
CHUNK = 2**20  # bytes hashed at a time, so that they fit into the CPU cache
DRAWN = 64  # number of examples to hash from a stream or from data ON_DISK; the minimum number for other sources
ON_DISK = {"tokens": (TRAIN, TEST, META), "image_folder": image_folder.SUFFIXES, "tfds": ("",)}
PREPARED = "~/tensorflow_datasets"  # TFDS's default data_dir
ALLOW, TRUST = "allow_changed_inputs", "trust_code"
KINDS = ("algorithm", "wrapper", *PARTS)


def fingerprints(
  experiments: Collection[Experiment], data: Data, init_from: str = "", tuned: str = ""
) -> dict[str, str]:
  """Return input name -> hash for experiments that share a data set. init_from, tuned: paths, or "" for none."""
  digests = _of_data(next(iter(experiments)).data, data)
  addresses = set[str]().union(*map(_addresses, experiments))
  settings = set[Path]().union(*map(_settings, experiments))
  digests |= {str(file): trusted_code.digest(file) for address in addresses for file in trusted_code.files(address)}
  digests |= {str(file): _files([file]) for file in settings}
  for option, name in (("init_from", init_from), ("tuned", tuned)):
    path = files.local(name)
    path = path / MODEL if path.is_dir() else path
    if name and path.is_file():  # a missing file is reported where it is read
      digests[option] = trusted_code.digest(path)
  return digests


def fingerprints_of_label(inputs: Mapping[str, str], experiment: Experiment) -> dict[str, str]:
  """Select, from the fingerprints of all inputs of a comparison, those of the inputs of one experiment."""
  used = {file for address in _addresses(experiment) for file in trusted_code.files(address)} | _settings(experiment)
  return {name: digest for name, digest in inputs.items() if not Path(name).is_absolute() or Path(name) in used}


def check(folder: Path, inputs: Mapping[str, str], allowed: bool) -> None:
  """Compare the fingerprints `inputs` with those recorded in `folder`, which the command resumes.

  Raises ValueError if an input has changed, unless `allowed`.
  """
  before = recorded_inputs(folder)
  if not before and (folder / ABOUT).exists():
    say(f"{folder} has no {INPUTS}, so changes to data and code cannot be detected")
  changed = [name for name in inputs if before.get(name, inputs[name]) != inputs[name]]
  if changed and not allowed:
    raise ValueError(
      f"the inputs of {folder} have changed: {', '.join(changed)}; restore them, or pass {ALLOW} to resume with the "
      "changed inputs"
    )


def allowed_code(folder: Path, trust: bool, changed: bool = False, load: bool = False) -> Any:
  """Return a context that restricts which user-defined code a folder's config can import; see `user_code.checked`.

  Args:
    trust: whether to import any code that the folder names.
    changed: whether files outside the folder may have changed since the run.
    load: whether the caller is `ddl.load`, which has only the option `trust_code`.
  """
  if trust:
    return user_code.checked(lambda address: None)
  home = root(folder)
  known = recorded_inputs(home) | recorded_inputs(folder)
  alternative = "" if load else f", or {ALLOW} to accept all changed files outside the folder"
  return user_code.checked(trusted_code.check(home, known, changed, f"pass {TRUST} to import it", alternative))


def root(folder: Path) -> Path:
  """Return the folder of the comparison or sweep that contains a run's folder, or the folder itself."""
  near = [folder.absolute(), *folder.absolute().parents[:3]]  # a sweep's runs are three levels below its folder
  roots = [path for path in near if any((path / name).exists() for name in (COMPARISON, STUDY, EXPERIMENT))]
  return roots[-1] if roots else folder


def _of_data(part: Part, data: Data) -> dict[str, str]:
  sources = {SPLITS[name]: source for name in SPLITS if (source := getattr(data, name)) is not None}
  sources |= {f"{name} test examples": source for name, source in data.tests.items()}
  lazy = part.name in ON_DISK or any(source.stream for source in sources.values())
  nbytes = {name: source.size * _example_nbytes(source) for name, source in sources.items()}
  lazy = lazy or sum(nbytes.values()) > WHOLE
  count = {name: SAMPLE * sources[name].size // max(nbytes[name], 1) if lazy else sources[name].size for name in nbytes}
  if part.name in ON_DISK:
    count = dict.fromkeys(nbytes, DRAWN)
  digests = {name: _examples(source, min(max(count[name], DRAWN), source.size)) for name, source in sources.items()}
  if lazy and (paths := _paths(part)):
    digests["data files"] = _files(paths, ON_DISK.get(part.name, ("",)))
  return digests


def _paths(part: Part) -> list[Path]:
  """Return the existing files and folders that a data set's settings name by absolute path (TFDS: its folder)."""
  if part.name == "tfds":
    home = Path(part.get("data_dir") or PREPARED).expanduser() / str(part.get("dataset")).partition("/")[0]
    return [home] if home.exists() else []
  texts = [value for value in part.settings.values() if isinstance(value, str)]
  return [path for text in texts if (path := _existing(text)) and path.is_absolute()]


def _existing(text: str) -> Path | None:
  """Return the text as a path if this file or folder exists, else None."""
  try:
    return path if (path := Path(text)).exists() else None
  except (OSError, ValueError):  # too long, or contains a NUL
    return None


def _addresses(experiment: Experiment) -> set[str]:
  """Return the import paths, FILE.py:NAME or MODULE:NAME, of an experiment's user-defined functions."""
  return {*filter(user_code.is_address, (getattr(experiment, kind).name for kind in KINDS))}


def _settings(experiment: Experiment) -> set[Path]:
  """Return the files named in settings outside the section `data`, such as a trace of step times."""
  paths = set[Path]()
  for kind in [kind for kind in KINDS if kind != "data"]:
    for value in getattr(experiment, kind).settings.values():
      looks_like_path = isinstance(value, str) and (os.sep in value or "." in value)
      if looks_like_path and (path := _existing(value)) and path.is_file():
        paths.add(path.absolute())
  return paths


def _example_nbytes(source: Source) -> int:
  return sum(x.nbytes for x in source.take(np.zeros(1, np.int64)).values()) if source.size else 0


def _examples(source: Source, count: int) -> str:
  """Hash a source: its size, labels and `count` evenly spaced examples; for a stream, its first DRAWN examples."""
  sha = hashlib.sha256(str(source.size).encode())
  if source.labels is not None:
    _add(sha, "labels", source.labels)
  if source.stream:
    for example in stream.first_examples(source.stream, DRAWN):
      for name, x in sorted(example.items()):
        _add(sha, name, np.asarray(x))
    return sha.hexdigest()
  indices = np.arange(count) * source.size // count if count < source.size else np.arange(source.size)
  rows = max(1, CHUNK // max(_example_nbytes(source), 1))
  for first in range(0, count, rows):
    for name, x in sorted(source.take(indices[first : first + rows]).items()):
      _add(sha, name, np.asarray(x))
  return sha.hexdigest()


def _add(sha: Any, name: str, x: np.ndarray) -> None:
  sha.update(f"{name} {x.dtype} {x.shape}".encode())
  sha.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8) if x.dtype != object else repr(x.tolist()).encode())


def _files(paths: Iterable[Path], suffixes: Sequence[str] = ("",)) -> str:
  """Hash the relative names, sizes and bytes of files; above WHOLE bytes in total, only evenly spaced blocks of bytes.

  Hidden files, hidden folders, and the folders of runs are skipped. suffixes: the suffixes of the files to include from
  folders, ignoring case.
  """
  sha, content = hashlib.sha256(), [(path, file) for path in paths for file in _below(path, suffixes)]
  sizes = [file.stat().st_size for _, file in content]
  for (path, file), size in zip(content, sizes, strict=True):
    sha.update(f"{file.relative_to(path) if file != path else ''} {size}\n".encode(errors="surrogateescape"))
  if sum(sizes) <= WHOLE:
    for _, file in content:
      with file.open("rb") as opened:
        for block in iter(partial(opened.read, CHUNK), b""):
          sha.update(block)
    return sha.hexdigest()
  ends = np.cumsum(sizes)
  starts = np.arange(SAMPLE // BLOCK) * int(ends[-1]) // (SAMPLE // BLOCK)
  for start, number in zip(starts.tolist(), np.searchsorted(ends, starts, side="right").tolist(), strict=True):
    with content[number][1].open("rb") as opened:
      opened.seek(start - int(ends[number]) + sizes[number])
      sha.update(opened.read(BLOCK))
  return sha.hexdigest()


def _below(path: Path, suffixes: Sequence[str]) -> Iterator[Path]:
  """Yield a file, or the files below a folder in sorted order; follow links but not cycles. suffixes: see `_files`."""
  if not path.is_dir():
    yield path
    return
  seen = set[str]()
  for folder, folders, names in os.walk(path, followlinks=True):
    if ABOUT in names or (real := os.path.realpath(folder)) in seen:  # files of runs change
      folders.clear()
      continue
    seen.add(real)
    folders[:] = sorted(name for name in folders if not name.startswith("."))
    for name in sorted(names):
      file = Path(folder, name)
      if not name.startswith(".") and name.lower().endswith(tuple(suffixes)) and file.is_file():
        yield file
