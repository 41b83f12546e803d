"""Kill the processes of jobs at random, drawn from a seed, and compare each job's results with an undisturbed one's.

  python docs/launch/chaos.py --kills=50 --seed=0

A job is a train, compare or sweep command, one of two processes, or an elastic one of three. SIGKILL hits a process
that trains, which --max_restarts starts again, or the command itself, which is started again with --resume. Metrics,
tables and models must then be equal to the last bit; those of the elastic job equal to its replay in virtual time, up
to rounding. Exit code 1 if they are not.
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
DIGITS = ["--config=configs/digits.py", "--config.algorithm.name=dasgd"]
SAVED = ["--config.eval_every=100", "--checkpoint_every=100", "--max_restarts=1000"]
ELASTIC = [*DIGITS, "--config.elastic=True", "--config.workers=6", "--config.steps=30000", "--config.eval_every=100"]
LABELS = ["--config=configs/digits_compare.py", "--config.steps=400", "--max_restarts=1000"]
JOBS = {
  "train": ["train", *DIGITS, *SAVED, "--config.steps=20000"],
  "two processes": ["train", *DIGITS, *SAVED, "--config.steps=20000", "--processes=2", "--config.workers=2"],
  "compare": ["compare", *LABELS, "--checkpoint_every=50"],
  "sweep": ["sweep", *LABELS, "--only=sync_sgd,local_sgd"],
  "elastic": ["train", *ELASTIC, "--processes=3", "--max_restarts=1000"],
}
FIRST, LONGEST = 4.0, 12.0  # seconds from a kill to the next
LAUNCHER = 0.2  # share of the kills that hit the command itself
ACTOR = b"ray::TrainingProcess"
SECONDS = 900.0  # in which a job ends
RELATIVE, ABSOLUTE = 0.05, 0.01  # rounding of losses, accuracies and distances in another layout


def main() -> int:
  """Disturb each job; return the exit code."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--kills", type=int, default=50, help="in all jobs together, at most")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--jobs", nargs="*", default=[*JOBS], choices=[*JOBS])
  options = parser.parse_args()
  draw, kills = random.Random(options.seed), 0
  with tempfile.TemporaryDirectory() as folder:
    for number, job in enumerate(options.jobs, 1):
      run = Path(folder) / job.replace(" ", "-")
      kills += (count := disturb(job, run, draw, options.kills * number // len(options.jobs) - kills))
      different = difference(job, run)
      print(f"{job}: {count} kills, {different or 'equal'}", flush=True)
      if different:
        return 1
  return 0


def disturb(job: str, folder: Path, draw: random.Random, kills: int) -> int:
  """Run a job to its end while its processes are killed; return how many were."""
  log = folder.with_suffix(".log").open("ab")
  process, count, begun = start(job, folder, log), 0, time.monotonic()
  kill_at = begun + draw.uniform(FIRST, LONGEST)
  while (code := process.poll()) != 0:
    if code is not None:
      if code != -signal.SIGKILL or time.monotonic() > begun + SECONDS:
        raise SystemExit(f"{job} failed with code {code}:\n{folder.with_suffix('.log').read_text()[-3000:]}")
      process = start(job, folder, log)
    elif count < kills and time.monotonic() > kill_at:
      trains = training(job, process.pid)
      victim = process.pid if draw.random() < LAUNCHER or not trains else draw.choice(trains)
      os.kill(victim, signal.SIGKILL)
      if victim == process.pid:
        process.wait()
        wait_for_end(trains)
      count, kill_at = count + 1, time.monotonic() + draw.uniform(FIRST, LONGEST)
    time.sleep(0.05)
  return count


def start(job: str, folder: Path, log: Any) -> "subprocess.Popen[bytes]":
  """Start a job, or resume what its folder holds."""
  resume = ["--resume"] if any(folder.rglob("config.json")) else []
  command = [sys.executable, RUN, *JOBS[job], f"--workdir={folder}", *resume]
  return subprocess.Popen(command, cwd=RUN.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def training(job: str, launcher: int) -> list[int]:
  """Return the processes that train: those that a launcher started, or the actors of an elastic job on Ray."""
  children = [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
  if job != "elastic":
    return children
  actors = [pid for child in children for pid in training(job, child)]
  return [pid for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(ACTOR)] + actors


def wait_for_end(pids: list[int], seconds: float = 30.0) -> None:
  """Wait until processes whose launcher was killed have ended."""
  until = time.monotonic() + seconds
  while any(Path(f"/proc/{pid}").exists() for pid in pids):
    if time.monotonic() > until:
      raise SystemExit(f"processes {pids} survive their launcher for {seconds:g} s")
    time.sleep(0.1)


def difference(job: str, folder: Path) -> str:
  """Return what differs from an undisturbed job, or for an elastic one from its replay in virtual time; "" if equal."""
  other = folder.with_name(f"{folder.name}-undisturbed")
  command = [sys.executable, RUN, *JOBS[job], f"--workdir={other}"]
  if job == "elastic":
    command = [sys.executable, RUN, "train", *ELASTIC, f"--replay={folder}/presence.json", f"--workdir={other}"]
  subprocess.run(command, cwd=RUN.parent, check=True, capture_output=True)
  for file in sorted(other.rglob("*")):
    same = folder / file.relative_to(other)
    if file.name == "metrics.jsonl":
      pairs = zip(lines(file), lines(same), strict=True)
      if not all(one.keys() == two.keys() and all(equal(k, one[k], two[k], job) for k in one) for one, two in pairs):
        return f"{file.relative_to(other)} differs"
    elif file.name in ("model.msgpack", "tuned.json") and job != "elastic" and file.read_bytes() != same.read_bytes():
      return f"{file.relative_to(other)} differs"
  return ""


def lines(file: Path) -> list[dict[str, Any]]:
  """Return the lines of metrics without what is measured by the clock."""
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  return [{key: value for key, value in row.items() if not key.endswith("seconds")} for row in rows]


def equal(key: str, one: Any, two: Any, job: str) -> bool:
  """Return whether two metrics are equal, for losses, accuracies and distances of an elastic job up to rounding."""
  if job == "elastic" and (key.startswith(("train_", "test_")) or key == "distance"):
    return math.isclose(one, two, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
  return one == two


if __name__ == "__main__":
  sys.exit(main())
