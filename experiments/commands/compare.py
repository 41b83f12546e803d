"""`python run.py compare`: several algorithms over several seeds on the same budget of examples, and a report."""

import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import jax
from absl import flags as absl_flags

from ddl.api import ServerAlgorithm
from ddl.events import lockstep, record
from ddl.runtime import hosts
from ddl.runtime.trainer import Trainer
from ddl.runtime.virtual.simulator import Simulator
from experiments.commands import flags, shared_flags
from experiments.config import experiment as configs
from experiments.config.factories import named
from experiments.config.variants import only, slug, trials, variants
from experiments.costs import cluster_clock, predict
from experiments.train import build, compilation_cache, run_dir, runner, train_loop, virtual_time
from experiments.train import resume as recorded
from experiments.train.evaluate import Evaluator, has_accuracy

TUNED = absl_flags.DEFINE_string(
  "tuned", "", "tuned.json of a sweep: learning rates and hyper-parameters per algorithm"
)
ONLY = shared_flags.only()
CLUSTER = shared_flags.cluster()


def main(config: Any) -> int:
  """Runs the comparison; returns the exit code."""
  stored = recorded.record("compare", config)
  chosen, tuned = only(variants(config, TUNED.value), ONLY.value), trials(TUNED.value)
  _check_seeds(config)
  path = build.workdir(f"compare-{config.model.name}-{config.data.name}")
  if not flags.RESUME.value:
    run_dir.RunFolder(path).check_unused()
  for label, variant in chosen.items():
    for variant.seed in config.compare.seeds:
      build.check_folder(path / slug(label) / f"seed-{variant.seed}", variant, alone=False)
  data = configs.load(config)
  experiments = {label: configs.build(variant, data) for label, variant in chosen.items()}
  _check(experiments)
  clusters = {name: each for v in chosen.values() for name, each in cluster_clock.chosen(CLUSTER.value, v).items()}
  if flags.PROCESSES.value > 1 and hosts.processes() == 1:
    return build.launch(config.workers, path)
  compilation_cache.start()
  build.start_devices(config.workers)
  _check_target(config.compare.target, next(iter(experiments.values())))  # tracing a model needs the devices
  started, failed, runs, how, ended = time.perf_counter(), {}, {}, "", 0
  if hosts.is_main():
    if TUNED.value and Path(TUNED.value) != path / run_dir.TUNED:
      path.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(TUNED.value, path / run_dir.TUNED)
    run_dir.record(path, run_dir.about(["python", *sys.argv]), stored)
  evaluator = Evaluator(next(iter(experiments.values())).model, data.test)
  build.say(f"{len(chosen)} algorithms x {len(config.compare.seeds)} seeds; {data.meta['description']}")
  for label, variant in chosen.items():
    trainer = build.make_trainer(experiments[label], variant)
    before, how = how, build.describe(trainer)
    build.say(label if how == before else f"{label}: {how}")
    runs[label] = []
    if not all(_done(path / slug(label) / f"seed-{seed}") for seed in config.compare.seeds):
      runner.rehearse(experiments[label], trainer, label)
    for seed in config.compare.seeds:
      variant.seed = seed
      experiment = configs.build(variant, data)
      runs[label].append(f"{slug(label)}/seed-{seed}")
      try:
        clock = build.follow(trainer, variant)
        last = _run(experiment, trainer, path / runs[label][-1], evaluator, f"{label}, seed {seed}", clock)
        ended += 1
      except train_loop.Diverged as error:
        failed[label] = str(error)
        build.say(f"  seed {seed}: {error}")
        continue
      except train_loop.Stopped as stopped:
        build.say(f"stopped in {label}, seed {seed}, and saved; {recorded.short('compare', path)} goes on")
        return 128 + stopped.args[1]
      if hosts.is_main() and seed == config.compare.seeds[0]:
        if isinstance(trainer, Simulator):
          record.save(path / slug(label) / run_dir.EVENTS, trainer.events)
        elif isinstance(trainer, Trainer) and any(
          isinstance(e.algorithm, ServerAlgorithm) for e in experiments.values()
        ):
          charged = virtual_time.charges(variant, trainer.traffic)
          waits = virtual_time.lockstep_record(variant, trainer.algorithm, charged)
          lockstep.save(path / slug(label) / run_dir.LOCKSTEP, waits)
      build.say(
        f"  seed {seed}: " + ", ".join(f"{k} {last[k]:.4g}" for k in ("test_accuracy", "test_loss") if k in last)
      )
  if hosts.is_main():
    _write(path, config, chosen, experiments, runs, failed, clusters, tuned)
    from experiments.report import (
      cluster_section,  # matplotlib takes a second to import
      report,
    )

    page = report.write_report(path)
    told = "".join(f"\n\n{sentence}" for sentence in cluster_section.sentences(path))
    print(f"\n{report.table(path)}{told}\n\n{time.perf_counter() - started:.0f} s; report: {page}")
    if not ended:
      print(f"compare: every run diverged, nothing is compared; {next(iter(failed.values()))}", file=sys.stderr)
  return 0 if ended else 1


def _done(path: Path) -> bool:
  return (path / run_dir.RESULT).exists() or (path / run_dir.FAILED).exists()


def _run(experiment: Any, trainer: Any, path: Path, evaluator: Evaluator, label: str, clock: Any) -> dict[str, Any]:
  """One run, or what it left if it was complete before a resume."""
  resume = flags.RESUME.value and (path / run_dir.CONFIG).exists()
  files = run_dir.RunFolder(path, writes=hosts.is_main())
  if resume and _done(path):
    files.reopen(experiment.resolved)
    if (path / run_dir.FAILED).exists():
      raise train_loop.Diverged(str(run_dir.read_json(path / run_dir.FAILED).get("diverged")))
    return run_dir.read_result(path)
  options = train_loop.Options(resume, keep_final=False, batch_stats=flags.BATCH_STATS.value, label=label, clock=clock)
  try:
    return train_loop.run(experiment, trainer, files, evaluator, options, run_dir.about(["python", *sys.argv]))
  except train_loop.Diverged as error:
    files.fail(str(error))
    raise


def _check(experiments: dict[str, configs.Experiment]) -> None:
  """Raises ValueError where the algorithms cannot be compared."""
  for label, experiment in experiments.items():
    if experiment.resolved["model"] != next(iter(experiments.values())).resolved["model"]:
      raise ValueError(f"{label} changes the model; a comparison is of algorithms on one model")
    budgets = [e.resolved["workers"] * e.resolved["batch"] * e.resolved["steps"] for e in experiments.values()]
    if len(set(budgets)) > 1:
      told = ", ".join(f"{name}: {budget}" for name, budget in zip(experiments, budgets, strict=True))
      raise ValueError(f"workers x batch x steps differ ({told} examples); a comparison has one budget of examples")


def _check_seeds(config: Any) -> None:
  """Raises ValueError for seeds or expectations that can't be."""
  expected = config.compare.expected
  if not isinstance(expected, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in expected):
    raise ValueError(f"config.compare.expected is {expected}; give pairs of labels, such as (('EASGD', 'local SGD'),)")
  for label in [label for pair in expected for label in pair]:
    named("label in config.compare.expected", config.compare.algorithms.to_dict(), label)
  seeds = config.compare.seeds
  if any(type(seed) is not int or not 0 <= seed < 2**32 for seed in seeds) or len(set(seeds)) < len(seeds):
    raise ValueError(f"config.compare.seeds is {seeds}: invalid: must be different integers from 0 to {2**32 - 1}")
  if not config.compare.seeds:
    raise ValueError("config.compare.seeds is empty; give at least one, and three for an interval")


def _check_target(target: float, experiment: configs.Experiment) -> None:
  """Raises ValueError for a target that no run can meet, or that all meet at once."""
  if has_accuracy(experiment.model, experiment.data.test):
    if not 0 < target <= 1:
      raise ValueError(f"config.compare.target is {target:g}; an accuracy is above 0 and at most 1, e.g. 0.95 for 95 %")
  elif not math.isfinite(target):
    raise ValueError(f"config.compare.target is {target:g}; the target of a loss has to be finite")


def _tell_changes(file: Path, page: dict[str, Any]) -> None:
  """Says what the comparison that `page` is about to overwrite had otherwise."""
  if not file.exists():
    return
  try:
    old, new = ({"target": each["target"]["value"], "title": each["title"]} for each in (run_dir.read_json(file), page))
  except (ValueError, KeyError, TypeError):  # damaged: what is drawn anew takes its place
    return
  told = [f"{key} {old[key]!r} before, {new[key]!r} now" for key in new if new[key] != old[key]]
  if told:
    print(f"the report in {file.parent} is drawn anew: {'; '.join(told)}")


def _write(
  path: Path,
  config: Any,
  chosen: Any,
  experiments: Any,
  runs: Any,
  failed: dict[str, str],
  clusters: Any,
  tuned: Any,
) -> None:
  """comparison.json: what the report needs beside the runs' metrics."""
  first = next(iter(experiments.values()))
  accuracy = has_accuracy(first.model, first.data.test)
  algorithms = []
  asynchronous = any(isinstance(e.algorithm, ServerAlgorithm) for e in experiments.values())
  for label, variant in chosen.items():
    spec, resolved = experiments[label].spec, experiments[label].resolved
    events, waits = f"{slug(label)}/{run_dir.EVENTS}", f"{slug(label)}/{run_dir.LOCKSTEP}"
    settings = {k: v for k, v in resolved.items() if k not in (*run_dir.NO_RUN_READS, "algorithm", "seed")}
    algorithms.append(
      {
        "label": label,
        "name": variant.algorithm.name,
        "title": spec.title,
        "citation": spec.citation,
        "taxonomy": spec.taxonomy._asdict(),
        "hyper": experiments[label].hyper,
        "settings": settings,
        "virtual": virtual_time.describe(variant) if asynchronous else None,
        "tuned": tuned.get(label),
        "failed": failed.get(label),
        "runs": runs[label],
        "events": events if (path / events).exists() else None,
        "lockstep": waits if (path / waits).exists() else None,
      }
    )
  about = run_dir.about(["python", *recorded.without(sys.argv, recorded.HERE)])  # as it is run elsewhere
  trained = run_dir.read_json(path / runs[next(iter(runs))][0] / run_dir.ABOUT)  # maybe long before this report
  common = {k: v for k, v in configs.jsonable(config.to_dict()).items() if k != "sweep"}
  page = {
    "title": config.compare.title or f"{len(chosen)} algorithms, {config.model.name} on {config.data.name}",
    "command": about["command"],
    "config": common,
    "target": {"metric": "test_accuracy" if accuracy else "test_loss", "value": config.compare.target},
    "versions": trained["versions"] if isinstance(trained.get("versions"), dict) else {},
    "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "git": trained.get("git"),
    "data": first.data.meta["description"],
    "model": _words(first.resolved["model"]),
    "seeds": list(config.compare.seeds),
    "expected": [list(pair) for pair in config.compare.expected],
    "algorithms": algorithms,
  }
  if clusters:
    page["clusters"] = predict.predict(path, clusters, chosen, experiments, runs, page["target"])
  _tell_changes(path / "comparison.json", page)
  (path / "comparison.json").write_text(json.dumps(page, indent=2) + "\n")


def _words(model: dict[str, Any]) -> str:
  sizes = ", ".join(
    f"{k} {'-'.join(map(str, v)) if isinstance(v, list) else v}" for k, v in model.items() if k != "name"
  )
  return f"{model['name']} ({sizes})" if sizes else model["name"]
