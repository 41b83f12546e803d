"""Short runs, a comparison and predictions with stored results, which a refactoring must reproduce bit for bit.

  python tests/golden/golden.py            run all cases and compare them with the stored results
  python tests/golden/golden.py --write    replace the stored results; explain the reason in the commit

`results/` contains the metrics of each run, the tables of the comparison and the numbers of each prediction as JSON,
and the final parameters of all runs in params.npz, without measured seconds and English sentences.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
DIGITS = ["train", "--config=configs/digits.py", "--config.model.hidden=(16,)", "--config.steps=60", "--devices=2"]
RUNS = {  # name: the flags after DIGITS
  "sync": ["algorithm.name=sync_sgd"],
  "sharded": ["algorithm.name=sharded_sync_sgd", "optimizer.name=adam", "optimizer.learning_rate=0.01"],
  "dasgd": ["algorithm.name=dasgd", "algorithm.period=4", "algorithm.delay=3", "algorithm.keep=0.25"],
  "streaming_diloco": ["algorithm.name=streaming_diloco", "algorithm.period=20", "algorithm.delay=2"],
  "sgp": ["algorithm.name=sgp", "schedule.name=cosine", "schedule.warmup=10"],
  "easgd_topk": ["algorithm.name=easgd", "wrapper.name=topk", "wrapper.share=0.25"],
  "slowmo": ["algorithm.name=slowmo", "algorithm.period=6"],
  "async_easgd": ["algorithm.name=async_easgd", "times.jitter=0.3", "network.message_seconds=0.002"],
  "ad_psgd": ["algorithm.name=ad_psgd", "times.jitter=0.3"],
  "elastic": [
    *("algorithm.name=local_sgd", "algorithm.period=4", "elastic=True"),
    *("times.death_rate=0.01", "times.down_seconds=0.1", "network.exchange_seconds=0.01"),
  ],
  "members": ["algorithm.name=dasgd", "workers=2", "--members=2", "--devices=4", "--sharding=tensor"],
  "microbatches": [
    *("algorithm.name=local_sgd", "microbatches=4", "model.name=lenet", "model.hidden=None"),
    *("data.name=npz", "data.path=IMAGES", "data.augment=crop_flip", "steps=20", "eval_every=10"),
  ],
}
CLUSTERS = ["dasgd_v100_10g", "h100_ib400", "cori_fdr"]
COMPARE = [
  *("compare", "--config=configs/digits_compare.py", "--config.steps=60", "--config.compare.seeds=(0,1,2)"),
  *("--only=sync SGD,DaSGD,EAMSGD,independent", "--config.compare.target=0.85", "--devices=2"),
  f"--cluster={','.join(CLUSTERS)}",
]
PREDICTIONS = {
  "plan_resnet50": ["plan", "--model=resnet50", "--cluster=h100_ib400"],
  "plan_alexnet": ["plan", "--model=alexnet", "--cluster=dasgd_v100_10g", "--workers=16"],
  "plan_vgg": ["plan", "--model=vgg_a", "--cluster=cori_fdr", "--efficiency=0.9"],
  "plan_config": ["plan", "--config=configs/digits.py", "--cluster=dasgd_v100_10g", "--config.algorithm.name=dasgd"],
  "scale_vgg": ["scale", "--model=vgg_a", "--cluster=cori_fdr", "--nodes=1,2,...,128"],
  "scale_weak": ["scale", "--model=resnet50", "--cluster=h100_ib400", "--scaling=weak", "--batch=64", "--jitter=0.1"],
  "scale_async": ["scale", "--model=alexnet", "--cluster=dasgd_v100_10g", "--algorithms=async_sgd,dasgd,diloco"],
}


def cases() -> list[str]:
  """Return the names of all cases; "compare" is one of them."""
  return [*RUNS, "compare", *PREDICTIONS]


def result(case: str) -> tuple[Any, dict[str, np.ndarray]]:
  """Run a case. Return its numbers and, for a run, the final parameters by their paths."""
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    if case in PREDICTIONS:
      return _prediction(PREDICTIONS[case], folder), {}
    if case == "compare":
      run_command(*COMPARE, f"--workdir={folder / 'run'}")
      files = ("metrics.csv", "table.csv", "pairs.csv")
      return {
        file: [row for row in _rows(folder / "run" / file) if row.get("quantity") != "seconds"] for file in files
      }, {}
    return _run(RUNS[case], folder)


def _run(changes: list[str], folder: Path) -> tuple[Any, dict[str, np.ndarray]]:
  digits = load_digits()
  images = folder / "images.npz"
  np.savez(images, image=np.float32(digits.images[..., None] / 16), label=digits.target)
  flags = {flag.partition("=")[0]: flag for flag in DIGITS[1:]}
  for change in changes:
    flag = (change if change.startswith("--") else f"--config.{change}").replace("IMAGES", str(images))
    flags[flag.partition("=")[0]] = flag
  run_command("train", *flags.values(), f"--workdir={folder / 'run'}")
  lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
  params = serialization.msgpack_restore((folder / "run/model.msgpack").read_bytes())["params"]
  leaves = jax.tree.leaves_with_path(params)
  return _without_seconds(lines), {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _prediction(command: list[str], folder: Path) -> Any:
  if command[0] == "plan":
    run_command(*command, f"--json={folder / 'plan.json'}")
    return _figures(json.loads((folder / "plan.json").read_text()))
  run_command(*command, f"--workdir={folder / 'run'}")
  names = ("communication", "efficiency", "speedup")
  return {name: _rows(folder / f"run/figures/{name}.csv") for name in names}


def run_command(*arguments: str) -> None:
  """Run a command of run.py. Raises RuntimeError if it fails."""
  # Compile with the default options, not with those of the tests.
  environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
  command = [sys.executable, "run.py", *arguments]
  process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
  if process.returncode:
    raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}: {process.stderr}")


def _rows(file: Path) -> list[dict[str, str]]:
  with file.open(newline="") as opened:
    return _without_seconds(list(csv.DictReader(opened)))


def _without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


def _figures(tree: Any) -> Any:
  """Return a JSON value without sentences."""
  if isinstance(tree, dict):
    return {key: _figures(value) for key, value in tree.items() if not _is_sentence(value)}
  if isinstance(tree, list):
    return [_figures(value) for value in tree if not _is_sentence(value)]
  return tree


def _is_sentence(value: Any) -> bool:
  return isinstance(value, str) and " " in value


def machine() -> dict[str, Any]:
  """Return JAX's version and the processor's vector instructions, on which the last bits depend."""
  flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
  vector = sorted(flag for flag in flags.split() if flag.startswith(("avx", "amx", "fma", "sse")))
  return {"jax": jax.__version__, "vector_instructions": vector}


def stored(case: str) -> tuple[Any, dict[str, np.ndarray]]:
  """Return the stored result of a case."""
  figures = json.loads((RESULTS / f"{case}.json").read_text())
  with np.load(RESULTS / "params.npz") as file:
    start = f"{case}/"
    return figures, {name.removeprefix(start): file[name] for name in file.files if name.startswith(start)}


def differences(case: str, exact: bool) -> list[str]:
  """Run a case. Return the paths of values that differ from the stored results.

  exact: compare bit for bit; otherwise within 5 % or 0.02, for another processor or JAX version.
  """
  now, before = (_leaves(output) for output in (result(case), stored(case)))
  different = [name for name in now if name in before and not _equal(now[name], before[name], exact)]
  return [*sorted(now.keys() ^ before.keys()), *different]


def _leaves(results: tuple[Any, dict[str, np.ndarray]]) -> dict[str, Any]:
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(results, lambda x: x is None)}


def _equal(now: Any, before: Any, exact: bool) -> bool:
  if exact or now is None or before is None:
    return bool(np.array_equal(now, before))
  try:
    return np.allclose(np.asarray(now, float), np.asarray(before, float), rtol=0.05, atol=0.02)
  except ValueError:
    return now == before


def is_machine_of_results() -> bool:
  """Return whether the stored results are from the same kind of processor and JAX version."""
  return json.loads((RESULTS / "machine.json").read_text()) == machine()


def write() -> None:
  """Replace the stored results."""
  RESULTS.mkdir(exist_ok=True)
  params = {}
  with ThreadPoolExecutor(2) as pool:
    for case, (figures, leaves) in zip(cases(), pool.map(result, cases()), strict=True):
      (RESULTS / f"{case}.json").write_text(json.dumps(figures, indent=1) + "\n")
      params |= {f"{case}/{name}": leaf for name, leaf in leaves.items()}
  np.savez_compressed(RESULTS / "params.npz", **params)
  (RESULTS / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n")


def main() -> int:
  """Compare or replace the stored results; return the exit code."""
  if sys.argv[1:] == ["--write"]:
    write()
    return 0
  exact = is_machine_of_results()
  with ThreadPoolExecutor(2) as pool:
    paths = dict(zip(cases(), pool.map(lambda case: differences(case, exact), cases()), strict=True))
  changed = {case: names for case, names in paths.items() if names}
  for case, names in changed.items():
    print(f"{case}: {len(names)} differences, such as {', '.join(names[:5])}")
  how = "" if exact else " (within 5 %: another machine)"
  print(f"{len(paths) - len(changed)} of {len(paths)} cases are equal{how}")
  return 1 if changed else 0


if __name__ == "__main__":
  sys.exit(main())
