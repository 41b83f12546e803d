"""The pages in docs/reference, made from what the program declares of itself: algorithms, config keys, commands."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from docstring_parser import parse

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.config import base
from ddl.config.catalog import REGISTRIES, keywords
from ddl.config.experiment import Experiment, Network, meanings
from ddl.errors import OptionError
from ddl.events import times
from ddl.ranges import ByWorkers
from experiments.command_line.cli import key_flags

COMMAND = "python run.py list --markdown=docs/reference"
MADE = f"Made by `{COMMAND}`; do not edit."
HEAD = ("name", "optimization", "scheduling", "pattern", "what is sent", "hyper-parameters", "paper")
SECTIONS = {kind: registry for kind, registry in REGISTRIES.items() if kind not in ("algorithm", "wrapper")}
WORKERS = 8  # for which a default that depends on their number is shown


def pages() -> dict[str, str]:
  """The text of each page by its file's name."""
  return {"algorithms.md": _algorithms(), "config.md": _config(), "commands.md": _commands()}


def write(folder: Path) -> list[Path]:
  """Write the pages and return their paths. ValueError where there is no such folder."""
  if not folder.is_dir():
    raise OptionError("markdown", "an existing folder, such as docs/reference", folder)
  texts = {folder / name: text for name, text in pages().items()}
  for path, text in texts.items():
    path.write_text(text)
  return list(texts)


def rows() -> list[tuple[str, ...]]:
  """Return a row of the table per algorithm."""
  out = []
  for name, spec in (COLLECTIVE | SERVER).items():
    names = (f"{key} ({spec.symbols[key]})" if key in spec.symbols else key for key in keywords(spec.factory))
    hyper = ", ".join(names) or "-"
    out.append((name, *spec.taxonomy[1:], hyper, spec.citation))
  return out


def settings(factory: Callable[..., Any]) -> list[str]:
  """The keyword-only arguments of a factory, with type and default."""
  return [re.sub(r"tuple\[.*?\]", "tuple", str(parameter)) for parameter in keywords(factory).values()]


def _table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
  cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
  return [_row(head), "|" + "---|" * len(list(head)), *map(_row, cells)]


def _row(cells: Iterable[str]) -> str:
  return f"| {' | '.join(cells)} |"


def _page(title: str, text: str) -> list[str]:
  """The beginning of a page."""
  return [f"# {title}", "", MADE, "", *textwrap.wrap(text, 120)]


def _algorithms() -> str:
  out = _page(
    "Algorithms",
    "All are data parallel. The axes are those of Langer et al. 2020, arXiv 2007.03970; the symbols are explained in "
    "[Concepts](../concepts.md).",
  )
  out.append("")
  out += _table(HEAD, [(f"[`{name}`](#{name})", *rest) for name, *rest in rows()])
  out += _specs("algorithm", COLLECTIVE | SERVER)
  out += ["", "# Wrappers", ""]
  out += ["`config.wrapper.name` changes what a collective algorithm sends: most compress each of its means and sums."]
  out += _specs("wrapper", WRAPPERS)
  return "\n".join(out) + "\n"


def _specs(section: str, registry: Mapping[str, Any]) -> list[str]:
  """A heading for each entry, with the first line and the equations of its docstring and its hyper-parameters."""
  out = []
  for name, spec in registry.items():
    summary, equations, *_ = str(inspect.getdoc(spec.factory)).split("\n\n")
    out += ["", f"## {name}", "", f"{spec.title}: {spec.citation}.", "", summary, "", *_text(equations)]
    if settings := keywords(spec.factory):
      meanings = {each.arg_name: " ".join(str(each.description).split()) for each in parse(spec.factory.__doc__).params}
      lines = [(f"`{k}`", spec.symbols.get(k, ""), _default(p), meanings[k]) for k, p in settings.items()]
      out += ["", *_table((f"`config.{section}.`", "symbol", "default", "meaning"), lines)]
  return out


def _default(parameter: inspect.Parameter) -> str:
  default = parameter.default
  if isinstance(default, ByWorkers):
    return f"`{default}`: `{default.value(WORKERS):.4g}` with {WORKERS} workers"
  return f"`{default!r}`" if default is not parameter.empty else "must be set"


def _text(text: str) -> list[str]:
  return ["```text", text.strip(), "```"]


def _config() -> str:
  config = base()

  out = _page(
    "Config keys",
    "A config file sets what differs from these; `--config.KEY=VALUE` overrides any of them. In a section `name` picks "
    "an entry and the other keys are its settings; a key that the entry does not take is an error, and one that is not "
    "set has the default that stands here.",
  )
  out.append("")
  lines = [(f"`{key}`", f"`{config[key]!r}`", meaning) for key, meaning in meanings(Experiment).items()]
  out += _table(("key", "default", "meaning"), lines)
  for section in ("compare", "sweep"):
    values, comments = config[section].to_dict(), _comments(section)
    lines = [(f"`{key}`", f"`{values[key]!r}`", meaning) for key, meaning in comments.items() if key in values]
    out += ["", f"## config.{section}", "", *_table(("key", "default", "meaning"), lines)]
  named = f"`name` is one of the [algorithms](algorithms.md), by default `{config.algorithm.name}`"
  out += ["", "## config.algorithm", "", f"{named}; its hyper-parameters are the other keys."]
  wrapped = f"`name` is one of the [wrappers](algorithms.md#wrappers), by default `{config.wrapper.name}`"
  out += ["", "## config.wrapper", "", f"{wrapped}; its settings are the other keys."]
  for section, registry in SECTIONS.items():
    out += ["", f"## config.{section}", "", f"`name` is by default `{config[section].name}`."]
    if section == "times":
      out += ["", *_text(inspect.cleandoc(str(times.__doc__)).partition(":\n")[2])]
    if section == "optimizer":
      out += ["", f"All take `learning_rate`, by default `{config.optimizer.learning_rate}`."]
    for name, factory in registry.items():
      taken = ", ".join(f"`{each}`" for each in settings(factory)) or "no settings"
      out += ["", f"**{name}**: {taken}", "", *_text(inspect.getdoc(factory) or "")]
  lines = [(f"`{key}`", f"`{getattr(Network, key)!r}`", meaning) for key, meaning in meanings(Network).items()]
  out += ["", "## config.network", "", *_table(("key", "default", "meaning; seconds, where it is a time"), lines)]
  return "\n".join(out) + "\n"


def _comments(section: str) -> dict[str, str]:
  """Return key -> the comment behind it in `base`, for a section, in the order of the source."""
  text = inspect.getsource(base).partition(f"config.{section} = ")[2].partition("\n  )\n")[0]
  return dict(re.findall(r"^\s+\"(\w+)\": [^#\n]*(?:# (.*))?$", text, re.MULTILINE))


def _commands() -> str:
  import run  # the file beside the folders

  text = "`train`, `compare`, `sweep` and `plan` take `--config=FILE` and `--config.KEY=VALUE` besides these, see"
  out = _page("Commands", f"{text} [Config keys](config.md).")
  for command in run.COMMANDS:
    module = importlib.import_module(f"experiments.commands.{command}")
    out += ["", f"## {command}", "", *inspect.cleandoc(str(module.__doc__)).partition("`: ")[2].splitlines(), ""]
    lines = [(f"`--{f.name}`", f"`{f.default!r}`", f.help) for f in key_flags(command)]
    out += _table(("flag", "default", "meaning"), lines)
  return "\n".join(out) + "\n"
