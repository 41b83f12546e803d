"""Several algorithms over several seeds on the same budget of examples, and a report, as an ordinary function."""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ddl.api import ServerAlgorithm
from ddl.events import lockstep, record
from ddl.perf.units import counted
from ddl.runtime import hosts
from ddl.runtime.trainer import Trainer
from ddl.runtime.virtual.simulator import Simulator
from experiments.compare import comparison_record, previous_record
from experiments.config.comparison import Comparison
from experiments.config.options import RunOptions
from experiments.config.variants import slug, trials
from experiments.costs import cluster_clock, predict
from experiments.train import build as made
from experiments.train import compilation_cache, run_dir, saved_model, train_loop, virtual_time
from experiments.train.build import Components
from experiments.train.evaluate import Evaluator, has_accuracy
from experiments.train.exit_codes import Failed, Stopped
from experiments.train.processes import check_processes, launch, say, start_devices
from experiments.train.runners.compiled import CompiledRun, warm_up
from experiments.train.workdir import check_folder, resume_command, workdir


def compare(comparison: Comparison, options: RunOptions | None = None) -> dict[str, Any]:
  """Runs the comparison and writes its report; returns what comparison.json holds, and "folder".

  Raises:
    Stopped: after SIGTERM or Ctrl-C; what was run is saved.
    Failed: if every run diverged, or one of several processes failed.
    ValueError: for an invalid folder, options or comparison.
  """
  options, began = options or RunOptions(), time.perf_counter()
  first, tuned = comparison.first, trials(comparison.tuned)
  path = workdir(f"compare-{first.model.short_name}-{first.data.short_name}", options)
  if not options.resume:
    run_dir.RunFolder(path).check_unused()
  asked = comparison.experiments
  for label, experiment in asked.items():
    for seed in comparison.seeds:
      check_folder(path / slug(label) / f"seed-{seed}", replace(experiment, seed=seed), options, alone=False)
  given, (comparison, options, read, kept) = (comparison, options), previous_record.joined(path, comparison, options)
  there = _there(path, read)
  workers = {each.workers for each in asked.values()}
  for count in workers:
    check_processes(count, max(options.processes, hosts.processes()), options.devices)
  data = made.load(first)
  components = {label: made.build(each, data) for label, each in comparison.experiments.items()}
  clusters = {
    name: cluster
    for each in comparison.experiments.values()
    for name, cluster in cluster_clock.chosen(comparison.clusters, each).items()
  }
  if options.processes > 1 and hosts.processes() == 1:
    launch(compare, given[0], replace(given[1], workdir=str(path)), max(workers))
    return run_dir.read_json(path / run_dir.COMPARISON) | {"folder": str(path)}
  compilation_cache.start(options.compilation_cache)
  start_devices(max(workers), options)
  _check_target(comparison.target, components)  # tracing a model needs the devices
  if hosts.is_main():
    if comparison.tuned and Path(comparison.tuned) != path / run_dir.TUNED:
      path.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(comparison.tuned, path / run_dir.TUNED)
    run_dir.record(path, run_dir.about(options.command), options.recorded)
  what = counted(len(asked), "label" if comparison.grid else "algorithm")
  what += " at points of the grid" * bool(comparison.grid)
  what += f" x {counted(len(comparison.seeds), 'seed')}" + f" beside {len(read)} that are read" * bool(read)
  say(f"{what}; {data.meta['description']}")
  runs, failed, ended = _runs(comparison, components, path, there, options)
  page = {}
  if hosts.is_main():
    page = comparison_record.content(path, comparison, components, runs, failed, kept | tuned, options)
    if clusters:
      page["clusters"] = predict.predict(path, clusters, components, runs, page["target"])
    comparison_record.write(path / run_dir.COMPARISON, page)
    _report(path, began, options.print_table)
  if not ended:
    raise Failed(1, f"every run diverged, nothing is compared; {next(iter(failed.values()))}")
  return page | {"folder": str(path)}


class There(NamedTuple):
  """Folders of runs that an earlier comparison left."""

  begun: set[Path]
  complete: set[Path]
  read: frozenset[str]  # labels that are not asked for


def _there(path: Path, read: frozenset[str]) -> There:
  """Look once, before any of several processes adds another."""
  begun, result, failed = (
    {file.parent for file in path.glob(f"*/seed-*/{name}")} for name in (run_dir.CONFIG, run_dir.RESULT, run_dir.FAILED)
  )
  return There(begun, result | failed, read)


def _runs(
  comparison: Comparison, components: Mapping[str, Components], path: Path, there: There, options: RunOptions
) -> tuple[dict[str, list[str]], dict[str, str], int]:
  """All runs: (folders by label, why labels diverged, how many runs came to their end)."""
  runs, failed, ended, how = {}, {}, 0, ""
  first = components[next(iter(components))]
  evaluator = Evaluator(first.model, first.data.test)
  beside = any(isinstance(each.algorithm, ServerAlgorithm) for each in components.values())
  for label, each in components.items():
    runs[label] = [f"{slug(label)}/seed-{seed}" for seed in comparison.seeds]
    if label in there.read:
      ended += sum((path / run / run_dir.RESULT).exists() for run in runs[label])
      why = [
        run_dir.read_json(file)["diverged"] for run in runs[label] if (file := path / run / run_dir.FAILED).exists()
      ]
      failed |= {label: why[-1]} if why else {}
      continue
    model = saved_model.started_from(options.init_from, each.model)
    each = each._replace(model=model)
    trainer = made.make_trainer(each, options)
    before, how = how, made.describe(trainer)
    say(label if how == before else f"{label}: {how}")
    if not all(path / run in there.complete for run in runs[label]):
      warm_up(each, trainer, label)
    for seed, run in zip(comparison.seeds, runs[label], strict=True):
      experiment = replace(each.experiment, seed=seed)
      try:
        read = " (complete, read from its folder)" if options.resume and path / run in there.complete else ""
        virtual_seconds = made.follow(trainer, experiment)
        parts = made.build(experiment, first.data)._replace(model=model)
        words = f"{label}, seed {seed}"
        last = _run(parts, trainer, path / run, there, evaluator, words, virtual_seconds, options)
        ended += 1
      except train_loop.Diverged as error:
        failed[label] = str(error)
        say(f"  seed {seed}: {error}")
        continue
      except Stopped as stopped:
        stopped.message = f"stopped in {label}, seed {seed}, and saved; resume with: {resume_command('compare', path)}"
        raise
      if hosts.is_main() and seed == comparison.seeds[0]:
        if isinstance(trainer, Simulator):
          record.save(path / slug(label) / run_dir.EVENTS, trainer.events)
        elif isinstance(trainer, Trainer) and beside:
          charged = virtual_time.charges(experiment, trainer.traffic)
          waits = virtual_time.lockstep_record(experiment, trainer.algorithm, charged)
          lockstep.save(path / slug(label) / run_dir.LOCKSTEP, waits)
      shown = ", ".join(f"{k} {last[k]:.4g}" for k in ("test_accuracy", "test_loss") if k in last)
      say(f"  seed {seed}: {shown}{read}")
  return runs, failed, ended


def _run(
  components: Components, trainer: Any, path: Path, there: There, evaluator: Evaluator, label: str,
  virtual_seconds: Callable[[int], float], options: RunOptions,
) -> dict[str, Any]:  # fmt: skip
  """One run, or what it left if it was complete before a resume."""
  resume = options.resume and path in there.begun
  files = run_dir.RunFolder(path, writes=hosts.is_main())
  if resume and path in there.complete:
    files.reopen(components.experiment)
    if (path / run_dir.FAILED).exists():
      raise train_loop.Diverged(str(run_dir.read_json(path / run_dir.FAILED).get("diverged")))
    return run_dir.read_result(path)
  runner = CompiledRun(components, trainer, keep_final=False)
  loop = train_loop.Options(resume, options.batch_stats, label, virtual_seconds, options.keep_models)
  try:
    return train_loop.run(components, runner, files, evaluator, loop, run_dir.about(options.command))
  except train_loop.Diverged as error:
    files.fail(str(error))
    raise


def _check_target(target: float, components: Mapping[str, Components]) -> None:
  """Raises ValueError for a target that no run can meet, or that all meet at once."""
  first = next(iter(components.values()))
  if has_accuracy(first.model, first.data.test):
    if not 0 < target <= 1:
      raise ValueError(
        f"config.compare.target is {target:g}; invalid: an accuracy must be above 0 and at most 1, e.g. 0.95 for 95 %"
      )
  elif not math.isfinite(target):
    raise ValueError(f"config.compare.target is {target:g}; invalid: the target of a loss must be finite")


def _report(path: Path, began: float, table: bool) -> None:
  """Write the page and say where it lies, after the table if that is wanted."""
  from experiments.report import cluster_section, report  # matplotlib takes a second to import

  page = report.write_report(path)
  if table:
    told = "".join(f"\n\n{sentence}" for sentence in cluster_section.sentences(path))
    say(f"\n{report.table(path)}{told}\n")
  say(f"{time.perf_counter() - began:.0f} s; report: {page}")
