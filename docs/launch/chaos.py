"""Kill processes of jobs at random moments drawn from a seed; the results must equal those of undisturbed jobs.

  python docs/launch/chaos.py --kills=50 --seed=0

A job is a train, compare or sweep command, one with two processes, or an elastic one with three. SIGKILL hits a
training process, which --max_restarts restarts, or the command itself, which is run again with --resume. Metrics,
tables and models must then be equal to the last bit; those of the elastic job must equal its replay in virtual time up
to rounding. Otherwise the exit code is 1.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUN = Path(__file__).parents[2] / "run.py"
DIGITS = ["--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.eval_every=100"]
SAVED = ["--checkpoint_every=100", "--max_restarts=1000"]
ELASTIC = [*DIGITS, "--config.elastic=True", "--config.workers=6", "--config.steps=12000"]
ELASTIC_LINES = 120
LABELS = [
  "--config=configs/digits_compare.py",
  "--only=sync_sgd,local_sgd",
  "--config.steps=400",
  "--max_restarts=1000",
]
JOBS = {
  "train": ["train", *DIGITS, *SAVED, "--config.steps=10000"],
  "two_processes": ["train", *DIGITS, *SAVED, "--config.steps=10000", "--processes=2", "--config.workers=2"],
  "compare": ["compare", *LABELS, "--checkpoint_every=50"],
  "sweep": ["sweep", *LABELS],
  "elastic": ["train", *ELASTIC, "--processes=3", "--max_restarts=1000", "--join_timeout=300"],  # for a busy machine
}
LAUNCHER = 0.2  # share of the kills that hit the command itself
EARLY = 0.4  # share of the first half of the kills that follow the previous kill, mostly while processes start
EARLY_SECONDS = 5.0  # longest time from the previous kill to an early one
LAST = 0.8  # share of the job's lines of metrics after which the last kill happens; the others are evenly spaced
DELAY_SECONDS = 0.1  # longest delay of a kill after these lines
ACTOR = b"ray::TrainingProcess"
SECONDS = 900.0  # within which a job must end
RELATIVE, ABSOLUTE = 0.05, 0.01  # rounding of losses, accuracies and distances in another layout


def main() -> int:
  """Disturb each job; return the exit code."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--kills", type=int, default=50, help="number of kills in all jobs together")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--jobs", nargs="*", default=[*JOBS], choices=[*JOBS])
  options = parser.parse_args()
  draw, kills = random.Random(options.seed), 0
  with tempfile.TemporaryDirectory() as parent:
    for number, job in enumerate(options.jobs, 1):
      folder = Path(parent) / job
      if job != "elastic":
        run_undisturbed(job, folder)
      kills += (count := disturb(job, folder, draw, options.kills * number // len(options.jobs) - kills))
      if job == "elastic":
        run_undisturbed(job, folder)
      difference = compare(job, folder)
      print(f"{job}: {count} kills, {difference or 'equal'}", flush=True)
      if difference:
        return 1
  return 0


def undisturbed(folder: Path) -> Path:
  """Return the folder of the undisturbed job."""
  return folder.with_name(f"{folder.name}-undisturbed")


def run_undisturbed(job: str, folder: Path) -> None:
  """Run a job without kills; for an elastic job, replay its membership in virtual time."""
  command = [sys.executable, RUN, *JOBS[job], f"--workdir={undisturbed(folder)}"]
  if job == "elastic":
    command = [sys.executable, RUN, "train", *ELASTIC, f"--replay={folder}/presence.json"]
    command += [f"--workdir={undisturbed(folder)}"]
  subprocess.run(command, cwd=RUN.parent, check=True, capture_output=True)


def disturb(job: str, folder: Path, draw: random.Random, kills: int) -> int:
  """Run a job to its end and kill its processes meanwhile; return the number of kills."""
  total = ELASTIC_LINES if job == "elastic" else count_lines(undisturbed(folder))
  log = folder.with_suffix(".log").open("ab")
  process, count, begin = start(job, folder, log), 0, time.monotonic()
  last_kill, kill_at, early = begin, math.inf, draw.random() < EARLY
  try:
    while (code := process.poll()) != 0:
      if code is not None:
        if code != -signal.SIGKILL or time.monotonic() > begin + SECONDS:
          raise SystemExit(f"{job} failed with code {code}:\n{folder.with_suffix('.log').read_text()[-3000:]}")
        process = start(job, folder, log)
      elif count < kills and kill_at == math.inf:
        if early:
          kill_at = last_kill + draw.uniform(0, EARLY_SECONDS)
        elif count_lines(folder) >= LAST * total * (count + 1) / kills:
          kill_at = time.monotonic() + draw.uniform(0, DELAY_SECONDS)
      elif time.monotonic() > kill_at:
        pids = training(job, process.pid)
        victim = process.pid if draw.random() < LAUNCHER or not pids else draw.choice(pids)
        os.kill(victim, signal.SIGKILL)
        if victim == process.pid:
          process.wait()
          wait_for_exit(pids)
        count, last_kill, kill_at = count + 1, time.monotonic(), math.inf
        early = count < kills / 2 and draw.random() < EARLY
      time.sleep(0.02)
  finally:
    process.kill()  # after an error; its processes exit with it
    process.wait()
  return count


def start(job: str, folder: Path, log: Any) -> "subprocess.Popen[bytes]":
  """Start a job, or resume it if its folder contains a run."""
  resume = ["--resume"] if any(folder.rglob("config.json")) else []
  command = [sys.executable, RUN, *JOBS[job], f"--workdir={folder}", *resume]
  return subprocess.Popen(command, cwd=RUN.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def count_lines(folder: Path) -> int:
  """Return the number of lines of metrics of all runs in a folder."""
  paths = (Path(parent) / "metrics.jsonl" for parent, _, names in os.walk(folder) if "metrics.jsonl" in names)
  return sum(path.read_bytes().count(b"\n") for path in paths)


def training(job: str, launcher: int) -> list[int]:
  """Return the training processes: children of the launcher, or the actors of an elastic job on Ray."""
  children = [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
  if job != "elastic":
    return children
  actors = [pid for child in children for pid in training(job, child)]
  return [pid for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(ACTOR)] + actors


def wait_for_exit(pids: list[int], seconds: float = 30.0) -> None:
  """Wait until processes whose launcher was killed have exited."""
  until = time.monotonic() + seconds
  while any(Path(f"/proc/{pid}").exists() for pid in pids):
    if time.monotonic() > until:
      raise SystemExit(f"processes {pids} must exit within {seconds:g} s after their launcher.")
    time.sleep(0.1)


def compare(job: str, folder: Path) -> str:
  """Return the first difference from the undisturbed job, "" if they are equal."""
  reference = undisturbed(folder)
  for expected in sorted(reference.rglob("*")):
    actual = folder / expected.relative_to(reference)
    if expected.name == "metrics.jsonl":
      pairs = zip(read_metrics(expected), read_metrics(actual), strict=True)
      if not all(a.keys() == b.keys() and all(equal(key, a[key], b[key], job) for key in a) for a, b in pairs):
        return f"{expected.relative_to(reference)} differs"
    elif expected.name in ("model.msgpack", "tuned.json") and job != "elastic" and different(expected, actual):
      return f"{expected.relative_to(reference)} differs"
  return ""


def different(a: Path, b: Path) -> bool:
  """Return whether two files have different contents, apart from the command and versions in a JSON file."""
  if a.suffix != ".json":
    return a.read_bytes() != b.read_bytes()
  one, other = (json.loads(file.read_text()) | {"about": None} for file in (a, b))
  return one != other


def read_metrics(file: Path) -> list[dict[str, Any]]:
  """Return the lines of metrics without measured seconds."""
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  return [{key: value for key, value in row.items() if not key.endswith("seconds")} for row in rows]


def equal(key: str, a: Any, b: Any, job: str) -> bool:
  """Return whether two metrics are equal; losses, accuracies and distances of an elastic job up to rounding."""
  if job == "elastic" and (key.startswith(("train_", "test_")) or key == "distance"):
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
  return a == b


if __name__ == "__main__":
  sys.exit(main())
