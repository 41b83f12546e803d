"""`python run.py list`: the algorithms with what they declare, the models, data sets and other parts, the clusters."""

import inspect
import textwrap
from pathlib import Path

from absl import flags

from ddl.algorithms import WRAPPERS
from ddl.config import catalog
from ddl.config.catalog import Config, keywords
from ddl.config.comparison import Comparison, variants
from ddl.config.experiment import Network, meanings
from ddl.config.user_code import is_address
from ddl.errors import OptionError
from ddl.events import times
from ddl.names import short_name
from ddl.perf import cluster_file, neural_networks
from ddl.perf.layers import params
from ddl.run.workdir import writable
from experiments.command_line.config_flag import CommandLine
from experiments.commands import reference

MARKDOWN = flags.DEFINE_string("markdown", "", "folder for pages of all this and the flags: docs/reference")


def main(line: CommandLine | None = None) -> int:
  """Print the lists, or what a config has of its own: objects and labels; return the exit code."""
  if line and line.config is not None and MARKDOWN.value:
    raise OptionError("markdown", "left out with config, as its pages are of all that `list` has")
  if line and line.config is not None:
    own = _own(line.config) or ["the config names no object of its own: all names are those of `list` alone"]
    print(*own, *_labels(line.config), sep="\n")
    return 0
  if MARKDOWN.value:
    print(*reference.write(writable(Path(MARKDOWN.value), "markdown")), sep="\n")
    return 0
  widths = [max(len(row[i]) for row in [reference.HEAD, *reference.rows()]) for i in range(len(reference.HEAD))]
  for row in [reference.HEAD, *reference.rows()]:
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
  print("\nall are data parallel; the axes are those of Langer et al. 2020, arXiv 2007.03970\n")
  print("config.wrapper.name")
  for name, spec in WRAPPERS.items():
    print(f"  {name:14} {', '.join(keywords(spec.factory))}: {spec.title}, {spec.citation}")
  for kind, registry in reference.SECTIONS.items():
    print(f"config.{kind}.name")
    for name, factory in registry.items():
      print(f"  {name:14} {', '.join(reference.settings(factory))}".rstrip())
      if kind in ("times", "barrier"):
        print(f"{'':17}{str(factory.__doc__).splitlines()[0].partition(' ValueError')[0]}")
    if kind == "times":
      print(str(times.__doc__).partition(":\n")[2].rstrip())  # the keys that all of them have
  print("config.network")
  for key, meaning in meanings(Network).items():
    print(f"  {key:17} = {getattr(Network, key)!s:5} {meaning}")
  print("--model of plan and scale: layer tables")
  for name in neural_networks.names():
    print(f"  {name:17} {neural_networks.title(name)}, {params(neural_networks.table(name)):,} parameters")
  print("--cluster")
  for name in cluster_file.built_in():
    cluster = cluster_file.named(name)
    print(f"  {name:17} {cluster.title}")
    print(textwrap.fill(cluster.source, 120, initial_indent=" " * 22, subsequent_indent=" " * 22))
  return 0


def _own(config: Config) -> list[str]:
  """Lines for each object of one's own that the config or a label of its comparison names."""
  addresses: dict[tuple[str, str], None] = {}
  for each in [config, *(variants(config).values() if config.compare.algorithms else [])]:
    addresses |= {(kind, each[kind].name): None for kind in catalog.REGISTRIES if is_address(each[kind].name)}
  out = []
  for kind, name in addresses:
    entry, function = catalog.entry(kind, name), catalog.factory(kind, name)
    title = getattr(entry, "title", None) or (inspect.getdoc(function) or "").partition("\n")[0]
    out += [f"config.{kind}.name", f"  {name}", f"    {', '.join(reference.settings(function))}".rstrip()]
    out += [f"    {title}"] if title else []
  return out


def _labels(config: Config) -> list[str]:
  """Lines for the labels of the config's comparison, with what each sets."""
  if not config.compare.algorithms and not config.compare.grid:
    return []
  labels = Comparison.from_config(config).to_json()["algorithms"]
  out = ["labels of config.compare: what differs between them"]
  for label, keys in labels.items():
    shown = {key: short_name(value) if key.endswith(".name") else value for key, value in keys.items()}
    text = ", ".join(f"{key} = {value}" for key, value in shown.items()) or "nothing"
    out += [f"  {label}", textwrap.fill(text, 120, initial_indent=" " * 4, subsequent_indent=" " * 4)]
  return out
