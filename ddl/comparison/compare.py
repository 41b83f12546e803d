"""Compare several algorithms over several seeds on the same budget of examples, and write a report."""

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddl import files, hosts, report
from ddl.comparison import label_runs, predict, record
from ddl.config.comparison import Comparison
from ddl.config.experiment import flat
from ddl.config.options import RunOptions
from ddl.costs import step_cost
from ddl.errors import OptionError
from ddl.names import pluralize, slug, text
from ddl.report.formats import listed
from ddl.run import build, folder
from ddl.run.average import EMA
from ddl.run.build import Components
from ddl.run.exit_codes import Failed
from ddl.run.metrics import Metric, comparison_metric
from ddl.run.processes import check_processes, launch, launches, say
from ddl.run.session import open_folder, session
from ddl.run.workdir import check_folder, resume_command

REPORT_FILES = ("report.html", "metrics.csv", "table.csv", "pairs.csv", "findings.json")


def compare(comparison: Comparison, options: RunOptions | None = None) -> dict[str, Any]:
  """Run a comparison and write its report; return the content of comparison.json plus the folder's path as "folder".

  Raises:
    Stopped: after SIGTERM or Ctrl-C; all progress is saved.
    Failed: if every run diverged, one of several processes failed, or the predictions or the report failed.
    ValueError: for an invalid folder, options or comparison.
  """
  options, began = options or RunOptions(), time.perf_counter()
  first, tuned = comparison.first, dict(comparison.tuned_labels)
  path = open_folder("compare", f"{first.model.short_name}-{first.data.short_name}", options)
  if not options.resume:
    folder.RunFolder(path).check_unused()
  _check_outputs(path)
  requested, requested_options = comparison, options
  for label, experiment in requested.experiments.items():
    for seed in comparison.seeds:
      check_folder(path / slug(label) / f"seed-{seed}", replace(experiment, seed=seed), options, single=False)
  comparison, options, read, earlier_tuned = record.joined(path, comparison, options)
  existing = label_runs.existing_runs(path, "*/seed-*", read)
  label_runs.check_metrics(path, existing)
  workers = {experiment.workers for experiment in requested.experiments.values()}
  for count in workers:
    check_processes(count, max(options.processes, hosts.processes()), options)
  data = build.load(first)
  components = {label: build.build(experiment, data) for label, experiment in comparison.experiments.items()}
  for built in components.values():
    build.check_options(built, options, clusters=comparison.clusters)
  predict.check_clusters(comparison.clusters, comparison.experiments.values(), options)
  if launches(options):
    launch(compare, requested, replace(requested_options, workdir=str(path)), max(workers), path.exists)
    return files.read_json(path / folder.COMPARISON) | {"folder": str(path)}
  with session(path, options, max(workers)) as started:
    options = started.options
    fingerprints = started.agree(comparison.to_json(), comparison.experiments.values(), data, comparison.tuned)
    metric = _metric(comparison, components)  # tracing a model needs the devices
    if comparison.clusters:
      step_cost.check_devices(options.members)
    if hosts.is_main():
      if comparison.tuned and Path(comparison.tuned) != path / folder.TUNED:
        path.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(comparison.tuned, path / folder.TUNED)
      folder.record(path, folder.about(options.command), options.recorded, fingerprints, existing.done(path))
    untuned = [comparison.place(label).group for label in requested.experiments if label not in tuned]
    for label, entry in requested.tuned_labels.items():
      say(_tuned_settings(label, entry, flat(requested.experiments[label].to_json())))
    if comparison.tuned and untuned:
      say(f"{comparison.tuned} has no settings for {listed([*dict.fromkeys(untuned)])}: the config's settings are used")
    what = pluralize(len(requested.experiments), "combination" if comparison.grid else "algorithm")
    what += " of algorithms and grid values" * bool(comparison.grid)
    what += f" x {pluralize(len(comparison.seeds), 'seed')}" + f", plus {len(read)} from earlier runs" * bool(read)
    say(f"{what}; {data.meta['description']}")
    labels = label_runs.to_train(comparison, path, existing)
    if options.resume and (path / folder.COMPARISON).exists() and labels:
      say(f"training incomplete seeds of {listed(labels)} first")
    runs, failed, ended = label_runs.run(comparison, components, path, existing, options, fingerprints, metric)
    page = {}
    if hosts.is_main():
      page = record.content(path, comparison, components, runs, failed, tuned | earlier_tuned, options, metric)
      record.write(path / folder.COMPARISON, page)
      try:
        if comparison.clusters:
          report.page.write_tables(path)  # before predictions, which may fail
          predict.add_clusters(path, comparison.clusters, components, options)
          page = files.read_json(path / folder.COMPARISON)
        report_file = report.page.write_report(path)
        if options.print_table:
          say(f"\n{report.page.table(path)}\n")
        say(f"{time.perf_counter() - began:.0f} s; report: {report_file}")
      except Exception as error:  # the runs are complete, even if their predictions or report fail
        raise Failed(1, _late(path, error)) from error
    if not ended:
      raise Failed(1, f"all runs diverged, so there is nothing to compare; {next(iter(failed.values()))}")
    return page | {"folder": str(path)}


def _tuned_settings(label: str, entry: Mapping[str, Any], values: Mapping[str, Any]) -> str:
  """Return a line with the tuned settings of a label. values: all settings of its experiment."""
  settings = [f"{key.rpartition('.')[2]} {text(values[key])}" for key in entry["keys"]]
  return f"{label}: {', '.join(settings)}, the best of {pluralize(entry['trials'], 'trial')}"


def _metric(comparison: Comparison, components: Mapping[str, Components]) -> Metric:
  """Return the metric that the target refers to. Raises OptionError if the metric cannot have this value."""
  (_, data, model, *_), target = next(iter(components.values())), comparison.target
  sources = {"": data.test, **data.tests}
  sources |= {EMA: data.test} if all(built.experiment.ema for built in components.values()) else {}
  metric = comparison_metric(comparison.metric, comparison.mode, model, sources, data.meta.get("task", ""))
  is_valid, condition = math.isfinite(target), f"finite for the metric {metric.name}"
  if report.formats.is_share(f"test_{metric.name}"):
    is_valid, condition = 0 < target <= 1, "in (0, 1] for an accuracy (0.95 for 95 %)"
  elif metric.name.endswith("perplexity"):
    is_valid, condition = 1 < target < math.inf, "above 1 and finite for a perplexity (for example 30)"
  if not is_valid:
    raise OptionError("config.compare.target", condition, f"{target:g}")
  return metric


def _check_outputs(path: Path) -> None:
  """Raise OptionError if a folder is in the place of a report file, or a file in the place of the figures folder."""
  names = (folder.COMPARISON, *REPORT_FILES)
  wrong = [name for name in names if (path / name).is_dir()] + ["figures"] * (path / "figures").is_file()
  if wrong:
    kind = "file" if wrong[0] == "figures" else "folder"
    raise OptionError("workdir", f"a folder without a {kind} named {wrong[0]}", path, "The report uses this name.")


def _late(path: Path, error: Exception) -> str:
  """Return the message for an error after the last run: what failed, what is complete, how to write the report."""
  what = " ".join(f"{type(error).__name__}: {error}".split())
  tables = [name for name in ("table.csv", "pairs.csv") if (path / name).exists()]
  written = f", and so are {' and '.join(tables)}" if tables else ""
  complete = f"all runs are complete in {path}{written}"
  advice = f"write the report with `{resume_command('compare', path)}`"
  return f"the report could not be completed ({what}); {complete}; {advice}"
