"""The common start of train, compare and sweep: folder, compilation cache, devices, hooks and consistency checks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddl.api import Data
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions, check_read
from ddl.run import compilation_cache, inputs, processes
from ddl.run.exit_codes import resumable
from ddl.run.hooks import resolved
from ddl.run.workdir import resume_command, workdir


def open_folder(command: str, name: str, options: RunOptions) -> Path:
  """Return a command's folder: options.workdir, or a new folder named after the command and `name`.

  Raises ValueError for an option that the command does not use, or an unusable folder.
  """
  check_read(command, options)
  path = workdir(f"{command}-{name}", options)
  resumable(resume_command(command, path, options.command))
  return path


@dataclass
class Session:
  """The state of a command after its devices are initialized and its processes have joined."""

  path: Path
  options: RunOptions  # the options, with hooks as functions
  reference: int | None  # the process with which to compare the others, see `first` in `processes.check`
  cached: Sequence[str]  # one item per compilation cache hit so far

  def agree(
    self, config: Mapping[str, Any], experiments: Collection[Experiment], data: Data, tuned: str = ""
  ) -> dict[str, str]:
    """Check that config, data and code are equal in all processes; return the fingerprints of the inputs.

    When resuming, also check that the inputs are as recorded, unless options.allow_changed_inputs is set. Raises
    ValueError for a difference.
    """
    options = replace(self.options, resume=False, allow_changed_inputs=False, trust_code=False)
    fingerprints = inputs.fingerprints(experiments, data, options.init_from, tuned)
    processes.check(config, options, data, fingerprints, self.reference)
    if self.options.resume:
      inputs.check(self.path, fingerprints, self.options.allow_changed_inputs)
    return fingerprints


@contextmanager
def session(path: Path, options: RunOptions, workers: int, group: Any = None) -> Iterator[Session]:
  """Import the hooks, enable the compilation cache, and start devices for up to `workers` workers; yield a `Session`.

  group: the process group of an elastic run on Ray, in which processes may have failed; None for other runs.
  """
  hooks = tuple(resolved(options.hooks))
  with compilation_cache.active(options.compilation_cache) as hits:
    processes.start_devices(workers, options, group.processes if group else None)
    yield Session(path, replace(options, hooks=hooks), group.reference if group else None, hits)
