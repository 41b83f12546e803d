"""Flags that several commands share, including those of `RunOptions`.

A command calls the functions of the flags that it uses. These flags become its key flags in absl's sense: the help of
the command lists them, and its command line may set them. Only the first call of a function defines the flag; therefore
one process can import several commands.
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

flags.disclaim_key_flags()  # the flags belong to the modules that call these functions

TYPES = get_type_hints(RunOptions)
DEFINE = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}


def _flag(define: Callable[..., Any], name: str, *settings: Any, **more: Any) -> flags.FlagHolder[Any]:
  if name not in flags.FLAGS:
    return define(name, *settings, **more)
  flags.declare_key_flag(name)
  return flags.FlagHolder(flags.FLAGS, flags.FLAGS[name])


def option(name: str) -> flags.FlagHolder[Any]:
  """Define the flag of a field of `RunOptions`."""
  (text, choices, _), default = FLAGS[name], getattr(RunOptions, name)
  if default is True:
    default, choices = "on", ("on", "off")
  if choices:
    return _flag(flags.DEFINE_enum, name, default, choices, text)
  if default == ():
    return _flag(flags.DEFINE_list, name, [], text)
  return _flag(DEFINE[TYPES[name]], name, default, text)


def run_flags(command: str) -> None:
  """Define the flags of a training command for its run options and for jobs with several processes."""
  for name, flag in FLAGS.items():
    if command in flag.commands:
      option(name)
  _flag(flags.DEFINE_string, "coordinator", "", "HOST:PORT of process 0, the same in all processes")
  text = "total number of processes; set it if JAX does not detect a cluster"
  _flag(flags.DEFINE_integer, "num_processes", None, text, lower_bound=1)
  text = "rank of this process, from 0; set it if JAX does not detect a cluster"
  _flag(flags.DEFINE_integer, "process_id", None, text, lower_bound=0)


def declare_process() -> None:
  """Set coordinator, number of processes and rank from the flags. Raises ValueError for an invalid combination."""
  place: dict[str, Any] = {name: flags.FLAGS[name].value for name in ("coordinator", "num_processes", "process_id")}
  if flags.FLAGS.processes > 1 and (conflicts := [name for name, value in place.items() if value not in ("", None)]):
    advice = "--processes starts all processes on this host."
    raise OptionError(conflicts[0], "unset if processes > 1", place[conflicts[0]], advice)
  hosts.declare(**place)


def run_options(line: CommandLine | None = None, **more: Any) -> RunOptions:
  """Build `RunOptions` from the flags. more: other values that a resumed run needs, see `resume.record`."""
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
  """Set each flag that is missing from the command line to its recorded value."""
  for name, value in options.items():
    if name in flags.FLAGS and not flags.FLAGS[name].present:
      flags.FLAGS[name].value = ("on" if value else "off") if name == "overlap" else value


def one_cluster() -> tuple[str, Cluster]:
  """Return the name and the cluster that --cluster selects.

  Raises:
    OptionError: if --cluster names no cluster, several, or an unknown one.
  """
  names: list[str] = cluster().value
  if len(names) != 1:
    known = ", ".join(cluster_file.names())
    raise OptionError("cluster", "one name or one .toml file", ", ".join(names) or "none", f"The names are {known}.")
  model = flags.FLAGS["model"].value if "model" in flags.FLAGS else ""
  return names[0], cluster_file.named(names[0], model or "")


cluster = partial(
  _flag, flags.DEFINE_list, "cluster", [],
  "cluster name (see `list`) or the path of a .toml file; compare takes several, separated by commas",
)  # fmt: skip
model = partial(
  _flag, flags.DEFINE_string, "model", "",
  "name of a layer table, optionally with other sizes, such as llama_8b:length=4096 or "
  "transformer:layers=24,width=2048 (GPT-2 with heads of width 64); scale also takes ddl's models",
)  # fmt: skip
batch = partial(
  _flag, flags.DEFINE_integer, "batch", None,
  "examples per step. plan: per worker; default: from the config, or recommended. scale: in total, or per worker with "
  "weak scaling; default: 512", lower_bound=1, upper_bound=10**12,
)  # fmt: skip
workers = partial(
  _flag, flags.DEFINE_string, "workers", "",
  "plan: number of workers; default: from the config, or recommended. scale: numbers of workers, such as 1,2,...,8, "
  "instead of --nodes",
)  # fmt: skip
algorithms = partial(
  _flag, flags.DEFINE_list, "algorithms", None,
  "comma-separated names; default: sync_sgd,local_sgd,dasgd (scale); all (netbench); those of "
  "config.compare.algorithms, or else config.algorithm (dryrun)",
)  # fmt: skip
turns = partial(
  _flag, flags.DEFINE_integer, "turns", 5, "measurements of each case; their median is reported", lower_bound=1
)
only = partial(
  _flag, flags.DEFINE_list, "only", [],
  "comma-separated labels or algorithm names from config.compare.algorithms (compare, sweep), or parts of case names "
  "(bench); default: all",
)  # fmt: skip
explain = partial(
  _flag, flags.DEFINE_bool, "explain", False,
  "print memory, FLOP, bytes moved and collectives of the compiled step (train), or slower algorithms, other batch "
  "sizes, formulas and sources (plan)",
)  # fmt: skip
json = partial(_flag, flags.DEFINE_string, "json", "", "write the results to this JSON file")
overlap, processes, workdir = (partial(option, name) for name in ("overlap", "processes", "workdir"))
