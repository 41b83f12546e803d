"""The text of a command's --help: what it does, an example, and its flags in groups."""

import importlib
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

EXAMPLES = {  # arguments of a valid call of each command
  "train": "--config=configs/digits.py --config.algorithm.name=dasgd --workdir=runs/first",
  "compare": '--config=configs/digits_compare.py --only="sync SGD,DaSGD" --workdir=runs/two',
  "sweep": "--config=configs/digits_compare.py --workdir=runs/sweep",
  "scale": "--model=vgg_a --cluster=cori_fdr --nodes=1,4,16",
  "bench": "--only=digits",
  "netbench": "--bandwidth=200mbit --latency=5ms",
  "plan": "--model=gpt2_124m --cluster=h100_ib400 --workers=64",
  "dryrun": "--config=configs/digits.py --topology=v5e:4x4",
  "calibrate": "--processes=2 --json=measured.json",
  "reproduce": "--check",
  "tokenize": "--text=corpus.txt --out=tokens",
  "list": "",
}
GROUPS = {  # title -> flags; other flags come first
  "Run": (
    "workdir", "resume", "allow_changed_inputs", "trust_code", "init_from", "checkpoint_every", "keep_best",
    "keep_models", "hooks",
  ),
  "Devices and compilation": (
    "devices", "members", "sharding", "virtual_grad", "step_loop", "steps_per_call", "overlap", "batch_stats",
    "compilation_cache",
  ),
  "Processes and failures": (
    "processes", "coordinator", "num_processes", "process_id", "join_timeout", "peer_timeout", "max_restarts",
  ),
  "Threads, Ray and elastic training": (
    "runtime", "replay", "shards", "ray_address", "worker_cpus", "worker_gpus",
  ),
}  # fmt: skip
WIDTH = 100


def text(command: str, flags: Sequence[Any], with_config: bool) -> str:
  """Return a command's help text. with_config: whether it takes --config."""
  module = importlib.import_module(f"experiments.commands.{command}")
  summary = inspect.cleandoc(str(module.__doc__)).partition("`: ")[2].splitlines()[0]
  lines = [f"{summary[0].upper()}{summary[1:]}", "", f"  python run.py {command} {EXAMPLES[command]}".rstrip()]
  if with_config:
    lines += ["", "--config=FILE loads a config; --config.KEY=VALUE overrides a key (docs/reference/config.md)."]
  grouped = {name for names in GROUPS.values() for name in names}
  of_name = {flag.name: flag for flag in flags}
  for title, names in {"Flags": [name for name in of_name if name not in grouped], **GROUPS}.items():
    if shown := [of_name[name] for name in names if name in of_name]:
      lines += ["", f"{title}:"]
      for flag in shown:
        default = "" if flag.default in (None, []) else flag.default
        lines += [f"  --{flag.name}={default}"]
        lines += textwrap.wrap(flag.help, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
  return "\n".join(lines)
