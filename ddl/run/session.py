"""What train, compare and sweep share: the start of a command in each of its processes."""

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
  """Return the folder of a command: that of its options, or a new one named after what it runs.

  Raises ValueError for an option that the command does not read, or a folder that cannot be used.
  """
  check_read(command, options)
  path = workdir(f"{command}-{name}", options)
  resumable(resume_command(command, path, options.command))
  return path


@dataclass
class Session:
  """A command that has started its devices and joined the other processes."""

  path: Path
  options: RunOptions  # with its hooks as functions
  reference: int | None  # the process that others must equal, where only those that differ end; None: all end
  cached: Sequence[str]  # programs that came from the compilation cache so far

  def agree(
    self, config: Mapping[str, Any], experiments: Collection[Experiment], data: Data, tuned: str = ""
  ) -> dict[str, str]:
    """Return the fingerprints of the inputs. ValueError if config, data or code of processes or a resume differ."""
    options = replace(self.options, resume=False, allow_changed_inputs=False, trust_code=False)
    fingerprints = inputs.of(experiments, data, options.init_from, tuned)
    processes.check(config, options, data, fingerprints, self.reference)
    if self.options.resume:
      inputs.check(self.path, fingerprints, self.options.allow_changed_inputs)
    return fingerprints


@contextmanager
def session(path: Path, options: RunOptions, workers: int, group: Any = None) -> Iterator[Session]:
  """Start the compilation cache, the devices and the hooks of the command that works in a folder.

  Args:
    options: of the command.
    workers: the largest number of workers.
    group: the processes, of which some may have failed, with `processes` and `reference`; None: all of them run.
  """
  hooks = tuple(resolved(options.hooks))
  with compilation_cache.active(options.compilation_cache) as hits:
    processes.start_devices(workers, options, group.processes if group else None)
    yield Session(path, replace(options, hooks=hooks), group.reference if group else None, hits)
