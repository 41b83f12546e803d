"""`python run.py reproduce`: write docs/reproduction.md, which compares published figures with predictions."""

import importlib
from pathlib import Path

from absl import flags

from ddl.run.workdir import writable
from experiments.command_line.config_flag import CommandLine
from experiments.papers import allreduce, das, dasgd, easgd, gossip, published_steps, sc17, scaling, sites, zou
from experiments.papers.page import Section, markdown

CONFIGS = Path(__file__).parents[2] / "configs"
PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"
COMMAND = "python run.py reproduce"
CHECK = flags.DEFINE_bool("check", False, "write nothing; exit with code 1 if a page is out of date")


def main(_line: CommandLine | None = None, check: bool | None = None) -> int:
  """Write the pages, or check that they are up to date; return the exit code. check: default --check."""
  check = CHECK.value if check is None else check
  if not check:
    writable(PAGE.parent, "the page's folder")
  now = {PAGE: page(), PAGE.with_name("device_steps.md"): published_steps.steps_page()}
  if not check:
    for file, text in now.items():
      file.write_text(text)
      print(file.relative_to(PAGE.parents[1]))
    for name, draw in filter(None, (section.picture for section in sections())):
      (PAGE.parent / name).write_bytes(draw())
    return 0
  current = all(file.is_file() and file.read_text() == text for file, text in now.items())
  names = " and ".join(f"docs/{file.name}" for file in now)
  print(f"{names} are {'up to date' if current else f'out of date; run {COMMAND}'}")
  return 0 if current else 1


def sections() -> list[Section]:
  """Build the sections in page order."""
  modules = {path.stem: importlib.import_module(f"configs.{path.stem}") for path in CONFIGS.glob("reproduce_*.py")}
  config = {name.removeprefix("reproduce_"): module.get_config() for name, module in modules.items()}
  weak = sc17.weak(config["sc17_weak"])
  return [
    das.section(config["das"]),
    sc17.gpus(config["sc17_gpus"], weak),
    sc17.parts(config["sc17_parts"]),
    weak,
    dasgd.section(config["dasgd"]),
    allreduce.section(config["allreduce"]),
    scaling.section(config["scaling"]),
    sites.section(config["sites"]),
    published_steps.section(),
    zou.section(config["zou"]),
    easgd.section(config["easgd"]),
    gossip.section(config["gossip"]),
  ]


def page() -> str:
  """Return the page as Markdown."""
  return markdown(sections())
