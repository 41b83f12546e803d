"""`python run.py bench`: compare the examples per second of each workload and algorithm with a plain optax loop.

ddl and the plain loop run in separate processes, as a user would start them, and take turns with blocks of steps. The
ratio of their rates is the median over pairs of consecutive blocks, because other load on the machine affects both
blocks of a pair. The command only reports the ratios; a low one is not an error.
"""

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags as absl_flags

from ddl import hosts
from ddl.errors import OptionError
from ddl.run.folder import about
from experiments.bench import predictions, rivals
from experiments.bench.workloads import ALGORITHMS, ASYNCHRONOUS, COUNTERPARTS, IN_PARTS, WORKLOADS
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine
from experiments.command_line.shared_flags import run_options

ONLY = shared_flags.only()
JSON = shared_flags.json()
PROCESSES = shared_flags.processes()
RIVALS = absl_flags.DEFINE_bool(
  "rivals", False, "compare with hand-written JAX loops and PyTorch (if installed) instead of the plain loop"
)
ASYNC = absl_flags.DEFINE_bool(
  "asynchronous", False, "compare server algorithms in virtual time with synchronous ones instead"
)
PERF = absl_flags.DEFINE_bool("perf", False, "measure the errors of the cost model's predictions instead")
TURNS = shared_flags.turns()
PASSED_ON = ("devices", "virtual_grad", "step_loop", "steps_per_call", "overlap")
KINDS = ("rivals", "asynchronous", "perf")
for name in PASSED_ON:
  shared_flags.option(name)


class Side(NamedTuple):
  """A running `experiments.bench.timed_process`, with the figures that it reported after its warm-up."""

  process: subprocess.Popen[str]
  figures: dict[str, Any]

  def rate(self) -> float:
    """Run one more block of steps and return its examples per second."""
    assert self.process.stdin
    self.process.stdin.write("go\n")
    self.process.stdin.flush()
    return _answer(self.process)["rate"]


@contextmanager
def _side(*arguments: str) -> Iterator[Side]:
  """Start a `timed_process`, wait until it has warmed up, and kill it at the end."""
  command, root = [sys.executable, "-m", "experiments.bench.timed_process", *arguments], Path(__file__).parents[2]
  pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
  with subprocess.Popen(command, cwd=root, env=hosts.launched(), **pipes) as process:
    try:
      yield Side(process, _answer(process))
    finally:
      process.kill()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
  assert process.stdout
  line = process.stdout.readline()
  if not line:
    raise ValueError("a benchmark process exited early; see its messages above")
  return json.loads(line)


def main(line: CommandLine) -> int:
  """Run the benchmark and print its table; return the exit code."""
  if len(kinds := [name for name in KINDS if absl_flags.FLAGS[name].value]) > 1:
    raise OptionError(kinds[1], f"unset when {kinds[0]} is set")
  unread = [name for name in ("only", "turns", *PASSED_ON) if absl_flags.FLAGS[name].present]
  if PERF.value and unread:
    raise OptionError(unread[0], "unset when perf is set", advice="The options of this benchmark are fixed.")
  if PROCESSES.present and not PERF.value:
    advice = "Other benchmarks start one process for each of the compared programs."
    raise OptionError("processes", "unset unless perf is set", advice=advice)
  if PERF.value:
    return predictions.main(JSON.value, PROCESSES.value if PROCESSES.present else 2, line.words)
  algorithms = ASYNCHRONOUS if ASYNC.value else ALGORITHMS
  cases = [
    (workload, algorithm)
    for workload in WORKLOADS
    for algorithm in algorithms
    if not ONLY.value or any(part.strip() in f"{workload} {algorithm}" for part in ONLY.value)
    if workload not in IN_PARTS or algorithm == "sync_sgd"
  ]
  _check(cases, f"part of a case name (one of {', '.join(WORKLOADS)}, a space, and one of {', '.join(algorithms)})")
  options = run_options()
  passed = json.dumps({name: getattr(options, name) for name in PASSED_ON})
  measure = _against_rivals if RIVALS.value else _against_synchronous if ASYNC.value else _against_plain
  results = measure(cases, passed)
  if JSON.value:
    Path(JSON.value).write_text(json.dumps({"about": about(line.words), "cases": results}, indent=2) + "\n")
  return 0


def _check(cases: list[tuple[str, str]], condition: str) -> None:
  if not cases:
    raise OptionError("only", condition, ",".join(ONLY.value))


def _against_plain(cases: list[tuple[str, str]], passed: str) -> list[dict[str, Any]]:
  """Measure ddl in each case against a plain optax loop, which is started once per workload."""
  print(f"{'case':41}{'examples/s':>12}{'plain':>11}{'ratio':>7}{'compile':>9}{'whole':>8}{'peak':>9}  how")
  results = []
  for workload, group in itertools.groupby(cases, key=lambda case: case[0]):
    with _side("plain", workload, "-") as plain:
      for _, algorithm in group:
        with _side("ddl", workload, algorithm, passed) as ddl_side:
          rates, ratios = _alternate({"ddl": ddl_side, "plain": plain})
        measured = {"examples_per_s": rates["ddl"], "plain_examples_per_s": rates["plain"], "ratio": ratios["plain"]}
        figures = {k: v for k, v in ddl_side.figures.items() if k != "ready"}
        results.append({"workload": workload, "algorithm": algorithm, **measured, **figures})
        print(
          f"{workload + ' ' + algorithm:41}{rates['ddl']:12,.0f}{rates['plain']:11,.0f}{ratios['plain']:7.2f}"
          "{compile_s:7.1f} s{whole_s:6.1f} s{peak_mb:6,.0f} MB  {how}".format(**figures),
          flush=True,
        )
  print("gradients of a device's workers (see virtual_grad):")
  for workload, choice in {result["workload"]: f"{result['how']}: {result['why']}" for result in results}.items():
    print(f"  {workload:32}{choice}")
  worst = min(results, key=lambda result: result["ratio"])
  print(f"lowest ratio: {worst['ratio']:.2f} ({worst['workload']} {worst['algorithm']})")
  print("to measure the cost model's errors (a few minutes): python run.py bench --perf")
  return results


def _against_rivals(cases: list[tuple[str, str]], passed: str) -> list[dict[str, Any]]:
  """Measure ddl and each program of `rivals.RIVALS` alternately, in two-worker cases with algorithms of PERIODS."""
  cases = [(w, a) for w, a in cases if a in rivals.PERIODS and WORKLOADS[w].workers == 2]
  _check(cases, f"a case with two workers and {' or '.join(rivals.PERIODS)} if rivals is set (for example, 'mlp 2x64')")
  names = [name for name in rivals.RIVALS if name != "torch" or find_spec("torch")]
  if "torch" not in names:
    print("PyTorch is not installed and is skipped (pip install torch)")
  sides = {case: {"ddl": ("ddl", *case, passed)} | {name: (name, *case) for name in names} for case in cases}
  return _side_by_side(sides, ["ddl", *names])


def _against_synchronous(cases: list[tuple[str, str]], passed: str) -> list[dict[str, Any]]:
  """Measure server algorithms against their synchronous counterparts.

  The visits of each server algorithm are computed in two ways: in waves of concurrent visits, and one at a time. The
  virtual step times, which order the visits, have 10 % jitter.
  """
  cases = [(w, a) for w, a in cases if WORKLOADS[w].workers == 8]
  _check(cases, "a case with eight workers if asynchronous is set (for example, 'mlp 8x64')")
  sides = {
    (w, a): {
      "waves": ("ddl", w, a, passed), "synchronous": ("ddl", w, COUNTERPARTS[a], passed), "one": ("one", w, a, passed)
    }
    for w, a in cases
  }  # fmt: skip
  return _side_by_side(sides, ["waves", "synchronous", "one by one"])


def _side_by_side(cases: dict[tuple[str, str], dict[str, tuple[str, ...]]], heads: list[str]) -> list[dict[str, Any]]:
  """Measure all programs ("sides") of each case; print their rates and the ratios of the first rate to the others.

  cases: for each (workload, algorithm), the process arguments of each side. heads: column headings, one per side.
  """
  print(f"{'case':32}{heads[0]:>11}" + "".join(f"{head:>13}{'ratio':>7}" for head in heads[1:]) + "   (examples/s)")
  results = []
  for (workload, algorithm), arguments in cases.items():
    with ExitStack() as stack:
      rates, ratios = _alternate({name: stack.enter_context(_side(*side)) for name, side in arguments.items()})
    results.append({"workload": workload, "algorithm": algorithm, "examples_per_s": rates, "ratios": ratios})
    label = f"{workload} {' / '.join(dict.fromkeys(side[2] for side in arguments.values()))}"
    row = "".join(f"{rates[name]:13,.0f}{ratio:7.2f}" for name, ratio in ratios.items())
    print(f"{label:32}{next(iter(rates.values())):11,.0f}{row}", flush=True)
  return results


def _alternate(sides: dict[str, Side]) -> tuple[dict[str, float], dict[str, float]]:
  """Measure the sides alternately; return their median rates, and median ratios of the first rate to the others."""
  rounds = [{name: side.rate() for name, side in sides.items()} for _ in range(TURNS.value)]
  rates = {name: statistics.median(r[name] for r in rounds) for name in sides}
  first, *others = sides
  return rates, {name: statistics.median(r[first] / r[name] for r in rounds) for name in others}
