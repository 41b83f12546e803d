"""Flags of execution and their `RunOptions`."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from absl import flags

from ddl import hosts
from ddl.config.options import RunOptions
from ddl.config.user_code import absolute
from ddl.hosts import JOIN_TIMEOUT, PEER_TIMEOUT
from ddl.run.compilation_cache import AUTO, OFF
from experiments.command_line import shared_flags


class _Folder(flags.ArgumentParser[str]):
  """A folder by its absolute path, so that a record of it holds anywhere."""

  def parse(self, argument: str) -> str:
    return argument if argument in ("", AUTO, *OFF) else str(Path(argument).expanduser().absolute())


flags.DEFINE_integer("devices", 0, "devices over all processes that carry the workers; 0: automatic", lower_bound=0)
flags.DEFINE_integer("members", 1, "devices of a worker, which hold its parameters in pieces", lower_bound=1)
flags.DEFINE_string("sharding", "fsdp", "how they do: fsdp, auto, or rules of the model such as tensor or hybrid")
shared_flags.processes()
flags.DEFINE_string("coordinator", "", "HOST:PORT of process 0, the same in all processes, each started by itself")
flags.DEFINE_integer("num_processes", None, "processes in all, where no cluster tells", lower_bound=1)
flags.DEFINE_integer("process_id", None, "this process's number, from 0, where no cluster tells", lower_bound=0)
flags.DEFINE_float("join_timeout", JOIN_TIMEOUT, "seconds in which all processes have to come", lower_bound=1.0)
flags.DEFINE_float("peer_timeout", PEER_TIMEOUT, "seconds of silence after which a process is lost", lower_bound=3.0)
flags.DEFINE_integer(
  "max_restarts", 0, "times that the processes go on from the last checkpoint after one was killed", lower_bound=0
)
flags.DEFINE_enum(
  "virtual_grad",
  "auto",
  ["auto", "unroll", "vmap", "map"],
  "gradients of a device's workers: one copy each, batched, a loop",
)
flags.DEFINE_enum("step_loop", "auto", ["auto", "unroll", "scan"], "steps of a compiled call")
flags.DEFINE_integer("steps_per_call", 0, "longest compiled call, in steps; 0: automatic", lower_bound=0)
shared_flags.overlap()
flags.DEFINE_enum(
  "batch_stats",
  "mean",
  ["mean", "reestimate"],
  "batch-norm statistics of the tested model: the workers' mean, or re-estimated",
)
flags.DEFINE_list("hooks", [], "functions called after each evaluation, as FILE.py:NAME or MODULE:NAME")
shared_flags.workdir()
flags.DEFINE(_Folder(), "init_from", "", "initial parameters: a run of the same model, or its model.msgpack")
flags.DEFINE_bool("resume", False, "continue what is in --workdir")
flags.DEFINE_bool("allow_changed_inputs", False, "resume with other data or code files than the folder records")
flags.DEFINE_bool("trust_code", False, "resume with user-defined code that lies in the folder, or has no hash there")
flags.DEFINE(
  _Folder(),
  "compilation_cache",
  AUTO,
  "folder of compiled programs; auto: JAX_COMPILATION_CACHE_DIR, else ~/.cache/ddl/jax; off: none",
)
NAMES = tuple(each.name for each in flags.FLAGS.flags_by_module_dict()[__name__])  # of these, but for shared ones


def declare_process() -> None:
  """Say which of several processes this is, before anything asks. Raises ValueError for what cannot be."""
  given: dict[str, Any] = {name: flags.FLAGS[name].value for name in ("coordinator", "num_processes", "process_id")}
  if flags.FLAGS.processes > 1 and any(value not in ("", None) for value in given.values()):
    raise ValueError("--processes starts processes here, and joins them; pass it without --coordinator and its like")
  hosts.declare(**given)


def run_options(command: tuple[str, ...] = (), recorded: Mapping[str, Any] | None = None) -> RunOptions:
  """From the flags. command: to be recorded; recorded: what a resume of the folder needs (`resume.record`)."""
  values: dict[str, Any] = {
    each.name: flags.FLAGS[each.name].value for each in fields(RunOptions) if each.name in flags.FLAGS
  }
  values["overlap"] = values["overlap"] == "on"
  values["hooks"] = tuple(map(absolute, values["hooks"]))
  return RunOptions(**values, command=command, recorded=recorded or {})
