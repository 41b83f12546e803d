"""`python run.py list`: list the algorithms (with taxonomy and hyperparameters), models, data sets and clusters."""

import inspect
import textwrap
from pathlib import Path

from absl import flags

from ddl.config import catalog
from ddl.config.catalog import Config
from ddl.config.comparison import Comparison, variants
from ddl.config.user_code import is_address
from ddl.errors import OptionError
from ddl.names import short_name
from ddl.run.workdir import writable
from experiments.command_line.config_flag import CommandLine
from experiments.commands import reference

MARKDOWN = flags.DEFINE_string("markdown", "", "write the reference pages to this folder, such as docs/reference")


def main(line: CommandLine | None = None) -> int:
  """Print the lists or a config's objects and labels, or write the pages of --markdown; return the exit code."""
  if line and line.config is not None and MARKDOWN.value:
    raise OptionError("markdown", "unset when config is set", advice="The pages do not depend on a config.")
  if line and line.config is not None:
    user_defined = _user_defined(line.config) or ["the config has no user-defined objects"]
    print(*user_defined, *_labels(line.config), sep="\n")
    return 0
  if MARKDOWN.value:
    print(*reference.write(writable(Path(MARKDOWN.value), "markdown")), sep="\n")
    return 0
  print(reference.text("list.txt"), end="")
  return 0


def _user_defined(config: Config) -> list[str]:
  """Describe each user-defined object of the config and of its compared algorithms, as lines of text."""
  addresses: dict[tuple[str, str], None] = {}
  for variant in [config, *(variants(config).values() if config.compare.algorithms else [])]:
    addresses |= {(kind, variant[kind].name): None for kind in catalog.REGISTRIES if is_address(variant[kind].name)}
  out = []
  for kind, name in addresses:
    entry, function = catalog.entry(kind, name), catalog.factory(kind, name)
    title = getattr(entry, "title", None) or (inspect.getdoc(function) or "").partition("\n")[0]
    out += [f"config.{kind}.name", f"  {name}", f"    {', '.join(reference.settings(function))}".rstrip()]
    out += [f"    {title}"] if title else []
  return out


def _labels(config: Config) -> list[str]:
  """Describe the algorithms of the config's comparison with the settings that differ, as lines of text."""
  if not config.compare.algorithms and not config.compare.grid:
    return []
  labels = Comparison.from_config(config).to_json()["algorithms"]
  out = ["labels of config.compare and the settings that differ between them"]
  for label, keys in labels.items():
    shown = {key: short_name(value) if key.endswith(".name") else value for key, value in keys.items()}
    text = ", ".join(f"{key} = {value}" for key, value in shown.items()) or "nothing"
    out += [f"  {label}", textwrap.fill(text, 120, initial_indent=" " * 4, subsequent_indent=" " * 4)]
  return out
