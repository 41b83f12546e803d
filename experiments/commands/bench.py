"""`python run.py bench`: examples per second of each workload and algorithm, against a plain optax loop.

Both sides are processes of their own, as a user would start them, and take turns: the ratio is the median over pairs
of blocks that follow each other, so that what else the machine does meets both. It is a report, not a test.
"""

import json
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from experiments.bench import predictions
from experiments.bench.asynchronous import ASYNCHRONOUS
from experiments.bench.rivals import PERIODS
from experiments.bench.rivals import RIVALS as RIVAL_SIDES
from experiments.bench.workloads import ALGORITHMS, WORKLOADS
from experiments.commands import shared_flags
from experiments.commands.config_flag import CommandLine
from experiments.commands.flags import run_options
from experiments.train.run_dir import about

ONLY = shared_flags.only()
JSON = shared_flags.json()
PROCESSES = shared_flags.processes()
RIVALS = absl_flags.DEFINE_bool("rivals", False, "measure hand-written JAX loops and PyTorch (if installed) instead")
ASYNC = absl_flags.DEFINE_bool("asynchronous", False, "measure server algorithms in virtual time instead")
PERF = absl_flags.DEFINE_bool("perf", False, "measure how far the cost model's predictions are off instead")
TURNS = absl_flags.DEFINE_integer("turns", 5, "pairs of blocks per case", lower_bound=1)
PASSED_ON = ("devices", "virtual_grad", "step_loop", "steps_per_call", "overlap")


class Side:
  """A running `experiments.bench.timed_process`."""

  def __init__(self, *arguments: str):
    """Starts it and waits until it is warm."""
    command = [sys.executable, "-m", "experiments.bench.timed_process", *arguments]
    self._process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    self.figures = self._read()

  def rate(self) -> float:
    """Examples per second of one more block."""
    assert self._process.stdin
    self._process.stdin.write("go\n")
    self._process.stdin.flush()
    return self._read()["rate"]

  def end(self) -> None:
    """Ends the process."""
    self._process.kill()
    self._process.wait()

  def _read(self) -> dict[str, Any]:
    assert self._process.stdout
    line = self._process.stdout.readline()
    if not line:
      raise ValueError("a side of the benchmark ended early; what it said is above")
    return json.loads(line)


def main(line: CommandLine) -> int:
  """Measures and prints; returns the exit code."""
  if PERF.value:
    unread = [
      f"--{name}" for name in ("only", "turns", "rivals", "asynchronous", *PASSED_ON) if absl_flags.FLAGS[name].present
    ]
    if unread:
      raise ValueError(f"bench --perf has its own cases and takes --json alone, not {', '.join(unread)}")
    return predictions.main(JSON.value, PROCESSES.value if PROCESSES.present else 2, line.words)
  algorithms = ASYNCHRONOUS if ASYNC.value else ALGORITHMS
  cases = [(w, a) for w in WORKLOADS for a in algorithms if _chosen(f"{w} {a}")]
  if not cases:
    raise ValueError(
      f"no case matches {','.join(ONLY.value)}; workloads: {', '.join(WORKLOADS)}; {', '.join(algorithms)}"
    )
  options = run_options()
  passed = json.dumps({name: getattr(options, name) for name in PASSED_ON})
  measure = _against_rivals if RIVALS.value else _against_synchronous if ASYNC.value else _against_plain
  results = measure(cases, passed)
  if JSON.value:
    Path(JSON.value).write_text(json.dumps({"about": about(line.words), "cases": results}, indent=2) + "\n")
  return 0


def _against_plain(cases: list[tuple[str, str]], passed: str) -> list[dict[str, Any]]:
  print(f"{'case':28}{'examples/s':>11}{'plain':>9}{'ratio':>7}{'compile':>9}{'whole':>8}{'peak':>9}  how")
  results, plain, current = [], None, ""
  for workload, algorithm in cases:
    if workload != current:
      if plain:
        plain.end()
      plain, current = Side("plain", workload, "-"), workload
    assert plain
    ours = Side("ddl", workload, algorithm, passed)
    pairs = [(plain.rate(), ours.rate()) for _ in range(TURNS.value)]
    ours.end()
    results.append(_figures(workload, algorithm, pairs, ours.figures))
    print(_row(results[-1]), flush=True)
  if plain:
    plain.end()
  worst = min(results, key=lambda r: r["ratio"])
  print(f"lowest ratio: {worst['ratio']:.2f} ({worst['workload']} {worst['algorithm']})")
  print("the median error of the cost model's predictions: python run.py bench --perf (some minutes)")
  return results


def _against_rivals(cases: list[tuple[str, str]], passed: str) -> list[dict[str, Any]]:
  """The cases with a device per worker on two cores, ddl and each rival in turn."""
  cases = [(w, a) for w, a in cases if a in PERIODS and WORKLOADS[w].workers == 2]
  if not cases:
    raise ValueError(f"--rivals measures two workers under {' or '.join(PERIODS)}; take e.g. --only='mlp 2x64'")
  rivals = [r for r in RIVAL_SIDES if r != "torch" or find_spec("torch")]
  if "torch" not in rivals:
    print("PyTorch is not installed, so that it is left out (pip install torch)")
  print(f"{'case':28}{'ddl':>9}" + "".join(f"{r:>10}{'ratio':>7}" for r in rivals) + "   (examples/s)")
  results = []
  for workload, algorithm in cases:
    sides = {"ddl": Side("ddl", workload, algorithm, passed)}
    sides |= {rival: Side(rival, workload, algorithm) for rival in rivals}
    rates, ratios = _in_turn(sides, "ddl")
    results.append({"workload": workload, "algorithm": algorithm, "examples_per_s": rates, "ratios": ratios})
    row = "".join(f"{rates[r]:10,.0f}{ratios[r]:7.2f}" for r in rivals)
    print(f"{workload + ' ' + algorithm:28}{rates['ddl']:9,.0f}{row}", flush=True)
  return results


def _against_synchronous(cases: list[tuple[str, str]], passed: str) -> list[dict[str, Any]]:
  """Eight workers of equal pace with 10 % jitter: waves, the synchronous counterpart, and one event at a time."""
  cases = [(w, a) for w, a in cases if WORKLOADS[w].workers == 8]
  if not cases:
    raise ValueError("--asynchronous measures eight workers; take e.g. --only='mlp 8x64'")
  print(f"{'case':32}{'waves':>11}{'synchronous':>13}{'ratio':>7}{'one by one':>12}{'ratio':>7}   (examples/s)")
  results = []
  for workload, algorithm in cases:
    counterpart = ASYNCHRONOUS[algorithm][1]
    sides = {
      "waves": Side("waves", workload, algorithm, passed),
      "synchronous": Side("ddl", workload, counterpart, passed),
      "one": Side("one", workload, algorithm, passed),
    }
    rates, ratios = _in_turn(sides, "waves")
    results.append({"workload": workload, "algorithm": algorithm, "examples_per_s": rates, "ratios": ratios})
    print(
      f"{f'{workload} {algorithm} / {counterpart}':32}{rates['waves']:11,.0f}{rates['synchronous']:13,.0f}"
      f"{ratios['synchronous']:7.2f}{rates['one']:12,.0f}{ratios['one']:7.2f}",
      flush=True,
    )
  return results


def _in_turn(sides: dict[str, Side], first: str) -> tuple[dict[str, float], dict[str, float]]:
  """Median rates of the sides, measured in turn, and the median ratios of the first to each other; ends them."""
  rounds = [{name: side.rate() for name, side in sides.items()} for _ in range(TURNS.value)]
  for side in sides.values():
    side.end()
  rates = {name: statistics.median(r[name] for r in rounds) for name in sides}
  return rates, {name: statistics.median(r[first] / r[name] for r in rounds) for name in sides if name != first}


def _chosen(case: str) -> bool:
  return not ONLY.value or any(part.strip() in case for part in ONLY.value)


def _figures(
  workload: str, algorithm: str, pairs: list[tuple[float, float]], figures: dict[str, Any]
) -> dict[str, Any]:
  return {
    "workload": workload,
    "algorithm": algorithm,
    "examples_per_s": statistics.median(ours for _, ours in pairs),
    "plain_examples_per_s": statistics.median(plain for plain, _ in pairs),
    "ratio": statistics.median(ours / plain for plain, ours in pairs),
    **{k: v for k, v in figures.items() if k != "ready"},
  }


def _row(r: dict[str, Any]) -> str:
  return (
    f"{r['workload'] + ' ' + r['algorithm']:28}{r['examples_per_s']:11,.0f}{r['plain_examples_per_s']:9,.0f}"
    f"{r['ratio']:7.2f}{r['compile_s']:7.1f} s{r['whole_s']:6.1f} s{r['peak_mb']:6,.0f} MB  {r['how']}"
  )
