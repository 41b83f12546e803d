"""`python run.py reproduce`: compare published numbers with predictions, in the pages of experiments/papers."""

import importlib
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from ddl.run.workdir import writable
from experiments.command_line.config_flag import CommandLine
from experiments.papers import allreduce, das, dasgd, easgd, gossip, published_steps, sc17, scaling, sites, zou
from experiments.papers.page import Section, markdown

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers"
COMMAND = "python run.py reproduce"
CHECK = flags.DEFINE_bool("check", False, "write nothing; exit with code 1 if a page is out of date")


def main(_line: CommandLine | None = None, check: bool | None = None) -> int:
  """Write the pages and their pictures, or check the pages; return the exit code. check: --check by default."""
  check = CHECK.value if check is None else check
  if not check:
    writable(FOLDER, "the folder of the pages")
  all_sections = sections()
  texts = {FOLDER / name: text for name, text in pages(all_sections).items()}
  if check:
    outdated = [file.name for file, text in texts.items() if not file.is_file() or file.read_text() != text]
    print(f"out of date: {', '.join(outdated)}; run {COMMAND}" if outdated else "all pages are up to date")
    return 1 if outdated else 0
  for file, text in texts.items():
    file.write_text(text)
    print(file)
  for name, draw in filter(None, (section.picture for section in all_sections)):
    (FOLDER / name).write_bytes(draw())
  return 0


def sections() -> list[Section]:
  """Build the sections in page order."""
  stems = [path.stem for path in (ROOT / "configs").glob("reproduce_*.py")]
  config = {stem.removeprefix("reproduce_"): importlib.import_module(f"configs.{stem}").get_config() for stem in stems}
  weak = sc17.weak(config["sc17_weak"])
  return [
    das.section(config["das"]),
    sc17.gpus(config["sc17_gpus"], weak),
    sc17.parts(config["sc17_parts"]),
    weak,
    dasgd.section(config["dasgd"]),
    allreduce.section(),
    scaling.section(config["scaling"]),
    sites.section(config["sites"]),
    published_steps.section(),
    zou.section(config["zou"]),
    easgd.section(config["easgd"]),
    gossip.section(config["gossip"]),
  ]


def pages(all_sections: Sequence[Section]) -> dict[str, str]:
  """Map the file name of each page to its text."""
  return {"reproduction.md": markdown(all_sections), "device_steps.md": published_steps.steps_page()}
