"""Generate the pages in docs/reference from the registries, the default config and the flags."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docstring_parser import parse

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.config import base
from ddl.config.catalog import REGISTRIES, keywords
from ddl.config.experiment import Experiment, Network, meanings
from ddl.errors import OptionError
from ddl.events import times
from ddl.perf import cluster_file, neural_networks
from ddl.perf.device import Chip, chips
from ddl.perf.layers import params
from ddl.perf.units import columns
from ddl.ranges import ByWorkers
from experiments.command_line.cli import key_flags
from experiments.papers.page import render

COMMAND = "python run.py list --markdown=docs/reference"
FOLDER = Path(__file__).parent / "pages"
HEAD = ("name", "optimization", "scheduling", "pattern", "what is sent", "hyperparameters", "paper")
SECTIONS = {kind: registry for kind, registry in REGISTRIES.items() if kind not in ("algorithm", "wrapper")}
WORKERS = 8  # number of workers for which the pages evaluate a default that depends on it


def text(template: str) -> str:
  """Render a template: a page, or the text that `list` prints."""
  return render(
    FOLDER / template, command=COMMAND, head=HEAD, rows=rows(), algorithms=_described(COLLECTIVE | SERVER),
    wrappers=_described(WRAPPERS), config=base(), sections=SECTIONS, settings=settings, comments=_comments,
    doc=inspect.getdoc, experiment=meanings(Experiment), network=meanings(Network), defaults=vars(Network()),
    commands=_commands, columns=columns, wrap=textwrap.fill, params=params, tables=neural_networks,
    clusters=cluster_file, chips=chips(), formats=_peaks, times=str(times.__doc__).partition(":\n")[2].rstrip(),
  )  # fmt: skip


def _peaks(chip: Chip) -> str:
  """Return the peaks of a data sheet as text, such as "bfloat16 989 TFLOP/s"."""
  return ", ".join(f"{form} {peak / 1e12:g} TFLOP/s" for form, peak in chip.peaks.items())


def pages() -> dict[str, str]:
  """Map the file name of each page to its text."""
  return {name: text(name) for name in ("algorithms.md", "config.md", "commands.md")}


def write(folder: Path) -> list[Path]:
  """Write the pages into an existing folder and return their paths."""
  if not folder.is_dir():
    raise OptionError("markdown", "an existing folder (for example docs/reference)", folder)
  texts = {folder / name: text for name, text in pages().items()}
  for path, text in texts.items():
    path.write_text(text)
  return list(texts)


def rows() -> list[tuple[str, ...]]:
  """Return one table row per algorithm, with the columns of HEAD."""
  out = []
  for name, spec in (COLLECTIVE | SERVER).items():
    names = (f"{key} ({spec.symbols[key]})" if key in spec.symbols else key for key in keywords(spec.factory))
    hyper = ", ".join(names) or "-"
    out.append((name, *spec.taxonomy[1:], hyper, spec.citation))
  return out


def settings(factory: Callable[..., Any]) -> list[str]:
  """Return the keyword-only arguments of a factory with type and default."""
  return [re.sub(r"tuple\[.*?\]", "tuple", str(parameter)) for parameter in keywords(factory).values()]


def _described(registry: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
  """Map each name to (registry entry, summary, equations, table of hyperparameters), from its factory's docstring."""
  described = {}
  for name, spec in registry.items():
    summary, equations, *_ = str(inspect.getdoc(spec.factory)).split("\n\n")
    descriptions = {doc.arg_name: " ".join(str(doc.description).split()) for doc in parse(spec.factory.__doc__).params}
    parameters = keywords(spec.factory).items()
    table = [(key, spec.symbols.get(key, ""), _default(value), descriptions[key]) for key, value in parameters]
    described[name] = spec, summary, equations.strip(), table
  return described


def _default(parameter: inspect.Parameter) -> str:
  default = parameter.default
  if isinstance(default, ByWorkers):
    return f"`{default}`: `{default.value(WORKERS):.4g}` with {WORKERS} workers"
  return f"`{default!r}`" if default is not parameter.empty else "must be set"


def _comments(section: str) -> dict[str, str]:
  """Map each key of a config section to its trailing comment in the source of `base`."""
  text = inspect.getsource(base).partition(f"config.{section} = ")[2].partition("\n  )\n")[0]
  return dict(re.findall(r"^\s+\"(\w+)\": [^#\n]*(?:# (.*))?$", text, re.MULTILINE))


def _commands() -> dict[str, tuple[str, list[Any]]]:
  """Map each command to (description, flags)."""
  import run  # run.py in the repository's root

  modules = {command: importlib.import_module(f"experiments.commands.{command}") for command in run.COMMANDS}
  return {
    command: (inspect.cleandoc(str(module.__doc__)).partition("`: ")[2], key_flags(command))
    for command, module in modules.items()
  }
