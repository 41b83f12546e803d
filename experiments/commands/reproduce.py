"""`python run.py reproduce`: docs/reproduction.md, reported against predicted numbers of papers, theory against ddl."""

from pathlib import Path

from absl import flags

from configs import (
  reproduce_allreduce,
  reproduce_das,
  reproduce_dasgd,
  reproduce_easgd,
  reproduce_gossip,
  reproduce_sc17_gpus,
  reproduce_sc17_parts,
  reproduce_sc17_weak,
  reproduce_scaling,
  reproduce_sites,
  reproduce_zou,
)
from ddl.run.workdir import writable
from experiments.command_line.config_flag import CommandLine
from experiments.papers import (
  allreduce,
  das,
  dasgd,
  device_steps,
  easgd,
  gossip,
  sc17_gpus,
  sc17_knl,
  scaling,
  sites,
  zou,
)
from experiments.papers.page import MEMORY, SECONDARY, Section, markdown, summary

PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"
COMMAND = "python run.py reproduce"
CHECK = flags.DEFINE_bool("check", False, "write nothing; exit code 1 unless the pages are current")

HEAD = f"""# Reported and predicted

Made by `{COMMAND}`; do not edit. Every predicted speed-up is arithmetic of `ddl/perf` on the inputs in
`configs/reproduce_*.py`; the last three sections hold statements of theory against simulations and the algorithms.

Error is predicted / reported - 1. A parameter is fitted on one reported number per table (weak scaling: one of each
network); that row says "fitted" and counts nowhere. The other rows of a fitted column are predicted from it. The costs
of NCCL and the shares of a device's peak are fitted on some systems and tested on others; they count in no headline. A
reported number without a mark is of the paper's abstract; {SECONDARY} is read in a secondary source, {MEMORY} is from
memory and could not be looked up.
"""


def main(_line: CommandLine | None = None, check: bool | None = None) -> int:
  """Write the page, or check it (check: None: as --check); return the exit code."""
  checks = CHECK.value if check is None else check
  if not checks:
    writable(PAGE.parent, "the page's folder")
  now = {PAGE: page(), PAGE.with_name("device_steps.md"): device_steps.page(COMMAND)}
  if not checks:
    for file, text in now.items():
      file.write_text(text)
      print(file.relative_to(PAGE.parents[1]))
    for name, draw in filter(None, (each.picture for each in sections())):
      (PAGE.parent / name).write_bytes(draw())
    return 0
  current = all(file.is_file() and file.read_text() == text for file, text in now.items())
  names = " and ".join(f"docs/{file.name}" for file in now)
  print(f"{names} are {'current' if current else f'out of date; run {COMMAND}'}")
  return 0 if current else 1


def sections() -> list[Section]:
  """Return a section per table, in the order of the page."""
  weak = sc17_knl.weak(reproduce_sc17_weak.get_config())
  return [
    das.section(reproduce_das.get_config()),
    sc17_gpus.section(reproduce_sc17_gpus.get_config(), weak),
    sc17_knl.parts(reproduce_sc17_parts.get_config()),
    weak,
    dasgd.section(reproduce_dasgd.get_config()),
    allreduce.section(reproduce_allreduce.get_config()),
    scaling.section(reproduce_scaling.get_config()),
    sites.section(reproduce_sites.get_config()),
    device_steps.section(),
    zou.section(reproduce_zou.get_config()),
    easgd.section(reproduce_easgd.get_config()),
    gossip.section(reproduce_gossip.get_config()),
  ]


def page() -> str:
  """Return the whole page."""
  found = sections()
  return "\n".join([HEAD, summary(found), "", "\n\n".join(map(markdown, found)), ""])
