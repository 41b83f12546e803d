"""`python run.py compare`: several algorithms over several seeds on the same budget of examples, and a report."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from absl import flags as absl_flags

from ddl.api import ServerAlgorithm
from ddl.events import record
from ddl.runtime import hosts
from ddl.runtime.simulator import Simulator
from experiments import config as configs
from experiments import flags, folder, session, setup, timeline
from experiments.evaluate import Evaluator
from experiments.parts import named
from experiments.variants import only, slug, variants

TUNED = absl_flags.DEFINE_string(
  "tuned", "", "tuned.json of a sweep: learning rates and hyper-parameters per algorithm"
)
ONLY = absl_flags.DEFINE_list("only", [], "labels of config.compare.algorithms, with commas between; default: all")


def main(config: Any) -> int:
  """Runs the comparison; returns the exit code."""
  chosen = only(variants(config, TUNED.value), ONLY.value)
  data = configs.load(config)
  experiments = {label: configs.build(variant, data) for label, variant in chosen.items()}
  path = setup.workdir(f"compare-{config.model.name}-{config.data.name}")
  _check(config, experiments)
  if flags.RESUME.value and not path.exists():
    raise ValueError(f"{path} holds no comparison to resume; without --resume a new one starts there")
  if flags.PROCESSES.value > 1 and hosts.processes() == 1:
    return setup.launch(config.workers, path)
  setup.start_devices(config.workers)
  started, failed, runs, how = time.perf_counter(), {}, {}, ""
  evaluator = Evaluator(next(iter(experiments.values())).model, data.test)
  setup.say(f"{len(chosen)} algorithms x {len(config.compare.seeds)} seeds; {data.meta['description']}")
  for label, variant in chosen.items():
    trainer = setup.make_trainer(experiments[label], variant)
    before, how = how, setup.describe(trainer)
    setup.say(label if how == before else f"{label}: {how}")
    runs[label] = []
    if not all((path / slug(label) / f"seed-{seed}" / folder.RESULT).exists() for seed in config.compare.seeds):
      session.rehearse(experiments[label], trainer)
    for seed in config.compare.seeds:
      variant.seed = seed
      experiment = configs.build(variant, data)
      runs[label].append(f"{slug(label)}/seed-{seed}")
      try:
        clock = setup.follow(trainer, variant)
        last = _run(experiment, trainer, path / runs[label][-1], evaluator, f"{label}, seed {seed}", clock)
      except session.Diverged as error:
        failed[label] = str(error)
        setup.say(f"  seed {seed}: {error}")
        continue
      except session.Stopped as stopped:
        setup.say(f"stopped in {label}, seed {seed}, and saved; continue with --resume --workdir={path}")
        return 128 + stopped.args[1]
      if isinstance(trainer, Simulator) and hosts.is_main() and seed == config.compare.seeds[0]:
        record.save(path / slug(label) / folder.EVENTS, trainer.events)
      setup.say(
        f"  seed {seed}: " + ", ".join(f"{k} {last[k]:.4g}" for k in ("test_accuracy", "test_loss") if k in last)
      )
  if hosts.is_main():
    _write(path, config, chosen, experiments, runs, failed)
    from experiments import report  # matplotlib takes a second to import

    page = report.write_report(path)
    print(f"\n{report.table(path)}\n\n{time.perf_counter() - started:.0f} s; report: {page}")
  return 0


def _run(experiment: Any, trainer: Any, path: Path, evaluator: Evaluator, label: str, clock: Any) -> dict[str, Any]:
  """One run, or what it left if it was complete before a resume."""
  resume = flags.RESUME.value and (path / folder.CONFIG).exists()
  files = folder.RunFolder(path, writes=hosts.is_main())
  if resume and (path / folder.RESULT).exists():
    files.reopen(experiment.resolved)
    return folder.read_json(path / folder.RESULT)
  options = session.Options(resume, keep_final=False, batch_stats=flags.BATCH_STATS.value, label=label, clock=clock)
  return session.run(experiment, trainer, files, evaluator, options, folder.about(["python", *sys.argv]))


def _check(config: Any, experiments: dict[str, configs.Experiment]) -> None:
  for label, experiment in experiments.items():
    if experiment.resolved["model"] != next(iter(experiments.values())).resolved["model"]:
      raise ValueError(f"{label} changes the model; a comparison is of algorithms on one model")
    budgets = [e.resolved["workers"] * e.resolved["batch"] * e.resolved["steps"] for e in experiments.values()]
    if len(set(budgets)) > 1:
      told = ", ".join(f"{name}: {budget}" for name, budget in zip(experiments, budgets, strict=True))
      raise ValueError(f"workers x batch x steps differ ({told} examples); a comparison has one budget of examples")
  for label in [label for pair in config.compare.expected for label in pair]:
    named("label in config.compare.expected", config.compare.algorithms.to_dict(), label)
  seeds = config.compare.seeds
  if any(not isinstance(seed, int) or seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
    raise ValueError(f"config.compare.seeds is {seeds}; give different integers from 0 on, e.g. (0, 1, 2)")
  if not config.compare.seeds:
    raise ValueError("config.compare.seeds is empty; give at least one, and three for an interval")


def _write(path: Path, config: Any, chosen: Any, experiments: Any, runs: Any, failed: dict[str, str]) -> None:
  """comparison.json: what the report needs beside the runs' metrics."""
  first = next(iter(experiments.values()))
  accuracy = "test_accuracy" in json.loads(next((path / next(iter(runs.values()))[0] / folder.METRICS).open()))
  algorithms = []
  asynchronous = [label for label, e in experiments.items() if isinstance(e.algorithm, ServerAlgorithm)]
  for label, variant in chosen.items():
    spec, resolved = experiments[label].spec, experiments[label].resolved
    events = f"{slug(label)}/{folder.EVENTS}"
    settings = {f"{k} of {kind}": v for kind in ("optimiser", "schedule") for k, v in resolved[kind].items()}
    algorithms.append(
      {
        "label": label,
        "name": variant.algorithm.name,
        "title": spec.title,
        "citation": spec.citation,
        "taxonomy": spec.taxonomy._asdict(),
        "hyper": experiments[label].hyper,
        "settings": settings,
        "seconds_clock": "measured here, compilation and evaluation excluded",
        "failed": failed.get(label),
        "runs": runs[label],
        "events": events if (path / events).exists() else None,
      }
    )
  about = folder.about(["python", *sys.argv])
  common = {k: v for k, v in configs.jsonable(config.to_dict()).items() if k != "sweep"}
  page = {
    "title": config.compare.title or f"{len(chosen)} algorithms, {config.model.name} on {config.data.name}",
    "command": about["command"],
    "config": common,
    "target": {"metric": "test_accuracy" if accuracy else "test_loss", "value": config.compare.target},
    "versions": about["versions"],
    "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "git": about["git"],
    "data": first.data.meta["description"],
    "model": _words(first.resolved["model"]),
    "workers": config.workers,
    "batch": config.batch,
    "seeds": list(config.compare.seeds),
    "expected": [list(pair) for pair in config.compare.expected],
    "virtual": timeline.describe(config) if asynchronous else None,
    "algorithms": algorithms,
  }
  (path / "comparison.json").write_text(json.dumps(page, indent=2) + "\n")


def _words(model: dict[str, Any]) -> str:
  sizes = ", ".join(
    f"{k} {'-'.join(map(str, v)) if isinstance(v, list) else v}" for k, v in model.items() if k != "name"
  )
  return f"{model['name']} ({sizes})" if sizes else model["name"]
