"""Flags that several commands have, among them those of `RunOptions`.

A command calls the functions for the flags that it reads. They are its key flags in the sense of absl: the flags that
its help lists and that its command line may set. The first command that asks defines a flag, so that any two fit into
one process.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from absl import flags

from ddl import hosts
from ddl.config.options import FLAGS, RunOptions
from ddl.config.user_code import absolute
from ddl.errors import OptionError
from ddl.library.resume import record
from ddl.perf import cluster_file
from ddl.perf.cluster import Cluster
from ddl.run.compilation_cache import AUTO, OFF
from experiments.command_line.config_flag import CommandLine

flags.disclaim_key_flags()  # they are key flags of the modules that call these functions

TYPES = get_type_hints(RunOptions)
DEFINE = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}


def _flag(define: Callable[..., Any], name: str, *settings: Any, **more: Any) -> flags.FlagHolder[Any]:
  if name not in flags.FLAGS:
    return define(name, *settings, **more)
  flags.declare_key_flag(name)
  return flags.FlagHolder(flags.FLAGS, flags.FLAGS[name])


def option(name: str) -> flags.FlagHolder[Any]:
  """Flag of a field of `RunOptions`."""
  (text, choices, _), default = FLAGS[name], getattr(RunOptions, name)
  if default is True:
    default, choices = "on", ("on", "off")
  if choices:
    return _flag(flags.DEFINE_enum, name, default, choices, text)
  if default == ():
    return _flag(flags.DEFINE_list, name, [], text)
  return _flag(DEFINE[TYPES[name]], name, default, text)


def run_flags(command: str) -> None:
  """Flags of a command that trains: its options, and those of a process that is started by itself."""
  for name, flag in FLAGS.items():
    if command in flag.commands:
      option(name)
  _flag(flags.DEFINE_string, "coordinator", "", "HOST:PORT of process 0, the same in all processes")
  text = "processes in all, where no cluster tells"
  _flag(flags.DEFINE_integer, "num_processes", None, text, lower_bound=1)
  _flag(
    flags.DEFINE_integer, "process_id", None, "this process's number, from 0, where no cluster tells", lower_bound=0
  )


def declare_process() -> None:
  """Set which of several processes this is, before anything asks. Raises ValueError for what cannot be."""
  place: dict[str, Any] = {name: flags.FLAGS[name].value for name in ("coordinator", "num_processes", "process_id")}
  if flags.FLAGS.processes > 1 and (others := [name for name, value in place.items() if value not in ("", None)]):
    raise OptionError(others[0], "left out with processes, which starts and joins them here", place[others[0]])
  hosts.declare(**place)


def run_options(line: CommandLine | None = None, **more: Any) -> RunOptions:
  """Return the options that the flags set. more: what a resume of the command needs too, see `resume.record`."""
  values: dict[str, Any] = {name: flags.FLAGS[name].value for name in FLAGS if name in flags.FLAGS}
  values["overlap"] = values.get("overlap", "on") == "on"
  values["hooks"] = tuple(map(absolute, values.get("hooks", ())))
  cache = values.get("compilation_cache", AUTO)
  values["compilation_cache"] = cache if cache in (AUTO, *OFF) else str(Path(cache).expanduser().absolute())
  options = RunOptions(**values)
  if line is None:
    return options
  return replace(
    options, command=line.words, recorded=record(line.command, line.config, options, line.arguments, **more)
  )


def restore(options: Mapping[str, Any]) -> None:
  """Set the flags that are not given to recorded options."""
  for name, value in options.items():
    if name in flags.FLAGS and not flags.FLAGS[name].present:
      flags.FLAGS[name].value = ("on" if value else "off") if name == "overlap" else value


def one_cluster() -> tuple[str, Cluster]:
  """Return the cluster that --cluster names, with its name.

  Raises:
    OptionError: for none, several, or one that is not known.
  """
  names: list[str] = cluster().value
  if len(names) != 1:
    known = ", ".join(cluster_file.names())
    raise OptionError("cluster", f"one of {known}", ", ".join(names) or "none", "Only compare takes several.")
  model = flags.FLAGS["model"].value if "model" in flags.FLAGS else ""
  return names[0], cluster_file.named(names[0], model or "")


cluster = partial(
  _flag, flags.DEFINE_list, "cluster", [],
  "name of a cluster as `list` has them, or a user-defined file, my.toml; compare takes several, a,b",
)  # fmt: skip
model = partial(_flag, flags.DEFINE_string, "model", "", "a layer table by name; scale also takes ddl's own models")
batch = partial(
  _flag, flags.DEFINE_integer, "batch", None,
  "examples a step: of a worker (plan; default: the config's or chosen), of all (scale; default: 512) or each with "
  "weak scaling", lower_bound=1, upper_bound=10**12,
)  # fmt: skip
workers = partial(
  _flag, flags.DEFINE_string, "workers", "",
  "number of workers (plan; default: the config's or chosen), or 1,2,...,8 (scale, instead of --nodes)",
)  # fmt: skip
servers = partial(
  _flag, flags.DEFINE_integer, "servers", None, "parameter servers (plan's default: chosen; scale's: 1)", lower_bound=1,
  upper_bound=65_536,
)  # fmt: skip
algorithms = partial(
  _flag, flags.DEFINE_list, "algorithms", None,
  "names, with commas between; default: sync_sgd,local_sgd,dasgd (scale), the labels of config.compare or the config's "
  "own (dryrun)",
)  # fmt: skip
turns = partial(_flag, flags.DEFINE_integer, "turns", 5, "pairs of blocks per case", lower_bound=1)
only = partial(
  _flag, flags.DEFINE_list, "only", [],
  "with commas between: labels or algorithms of config.compare.algorithms, parts of bench's case names; default: all",
)  # fmt: skip
json = partial(_flag, flags.DEFINE_string, "json", "", "file that the figures are written to")
overlap, processes, workdir = (partial(option, name) for name in ("overlap", "processes", "workdir"))
