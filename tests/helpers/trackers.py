"""Weights & Biases and MLflow for tests: modules that store runs in memory, and readers of what the packages store."""

import json
import os
import struct
import types
import uuid
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

import pytest


class Stored(NamedTuple):
  """A run that a tracker has stored."""

  name: str
  project: str
  group: str | None
  config: dict[str, str]  # with dots in the keys
  lines: list[dict[str, float]]
  state: str | None  # "finished", "failed", "killed" (MLflow only), or None while it runs


def flat(tree, prefix=""):
  """Flatten nested dicts to one dict of strings whose keys are joined with dots."""
  if not isinstance(tree, dict):
    return {prefix: str(tree)}
  return {name: x for key, part in tree.items() for name, x in flat(part, f"{prefix}.{key}" if prefix else key).items()}


class FakeWandb(types.ModuleType):
  """The functions of W&B that the hook calls, with a server in memory."""

  def __init__(self, mode):
    super().__init__("wandb")
    self.mode, self.server = mode, {}

  def setup(self):
    project = os.environ.get("WANDB_PROJECT")
    return types.SimpleNamespace(settings=types.SimpleNamespace(mode=self.mode, project=project))

  def init(self, *, project, name, group, config, id, resume, reinit):
    online = self.mode == "online"  # an offline run does not know its earlier part
    assert reinit == "create_new" and (resume == "allow") == (online and id in self.server)
    before = self.server.get(id)
    steps = [line["step"] for line in before.lines] if before and online else []
    run = Stored(name, project, group, flat(config), before.lines if before else [], None)
    self.server[id] = run

    def log(metrics, step, commit):
      assert commit and step > max((line["step"] for line in run.lines), default=-1)
      run.lines.append({"step": step, **metrics})

    def finish(exit_code):
      self.server[id] = run._replace(state="failed" if exit_code else "finished")

    return types.SimpleNamespace(id=id, starting_step=max(steps, default=-1) + 1, log=log, finish=finish)

  def stored(self):
    return list(self.server.values())


class FakeMLflow(types.ModuleType):
  """The classes of MLflow that the hook calls, with a server in memory."""

  def __init__(self):
    super().__init__("mlflow")
    self.server, self.experiments = {}, []
    metric = namedtuple("Metric", "key value timestamp step")
    self.entities = types.SimpleNamespace(Metric=metric, Param=namedtuple("Param", "key value"))

  def MlflowClient(self):
    return self

  def get_experiment_by_name(self, name):
    return types.SimpleNamespace(experiment_id=f"id of {name}") if name in self.experiments else None

  def create_experiment(self, name):
    self.experiments.append(name)
    return f"id of {name}"

  def create_run(self, experiment_id, tags, run_name):
    run_id = uuid.uuid4().hex
    project = experiment_id.removeprefix("id of ")
    self.server[run_id] = Stored(run_name, project, tags.get("group"), {}, [], None)
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

  def log_batch(self, run_id, metrics=(), params=()):
    self.server[run_id].config.update(params)
    if metrics:
      self.server[run_id].lines.append({"step": metrics[0].step} | {metric.key: metric.value for metric in metrics})

  def get_metric_history(self, run_id, key):
    lines = self.server[run_id].lines
    return [self.entities.Metric(key, line[key], 0, line["step"]) for line in lines if key in line]

  def update_run(self, run_id, status):
    assert status == "RUNNING"
    self.server[run_id] = self.server[run_id]._replace(state=None)

  def set_terminated(self, run_id, status):
    self.server[run_id] = self.server[run_id]._replace(state=status.lower())

  def stored(self):
    return list(self.server.values())


class RealWandb:
  """W&B, whose offline runs are read from their files, those of a resumed run in order."""

  def __init__(self, folder, monkeypatch):
    pytest.importorskip("wandb").teardown()  # it reads its environment variables only once
    self._folder = folder / "wandb files"
    self._folder.mkdir()
    for name, value in {"MODE": "offline", "DIR": str(self._folder), "SILENT": "true", "CONSOLE": "off"}.items():
      monkeypatch.setenv(f"WANDB_{name}", value)

  def stored(self):
    runs = {}
    for file in sorted(self._folder.glob("wandb/offline-run-*/*.wandb")):  # their names begin with the time
      for record in _records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
          run, config = record.run, {item.key: json.loads(item.value_json) for item in record.run.config.update}
          lines = runs[run.run_id].lines if run.run_id in runs else []
          group = run.run_group or None
          key, entry = run.run_id, Stored(run.display_name, run.project, group, flat(config), lines, None)
          runs[key] = entry
        elif kind == "history":
          items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
          line = {name: value for name, value in items.items() if not name.startswith("_")}
          runs[key].lines.append({"step": record.history.step.num, **line})
        elif kind == "exit":
          runs[key] = runs[key]._replace(state="failed" if record.exit.exit_code else "finished")
    return list(runs.values())


def _records(file: Path):
  """Yield the records of a .wandb file, which has the format of LevelDB's log after a header of 7 bytes."""
  from wandb.proto.wandb_internal_pb2 import Record

  content, place, part = file.read_bytes(), 7, b""
  while place + 7 <= len(content):
    if (left := 32768 - place % 32768) < 7:
      place += left
      continue
    _, size, kind = struct.unpack("<IHB", content[place : place + 7])
    part += content[place + 7 : place + 7 + size]
    place += 7 + size
    if kind in (1, 4):  # the whole record, or its last part
      yield Record.FromString(part)
      part = b""


class RealMLflow:
  """MLflow, whose runs are read from a database."""

  def __init__(self, folder, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")

  def stored(self):
    from mlflow import MlflowClient

    client, runs = MlflowClient(), []
    for experiment in client.search_experiments():
      for run in client.search_runs([experiment.experiment_id]):
        steps = {}
        for name in run.data.metrics:
          for metric in client.get_metric_history(run.info.run_id, name):
            assert name not in steps.setdefault(metric.step, {"step": metric.step})
            steps[metric.step][name] = metric.value
        state = {"RUNNING": None}.get(run.info.status, run.info.status.lower())
        lines = [steps[step] for step in sorted(steps)]
        group = run.data.tags.get("group")
        runs.append(Stored(run.info.run_name, experiment.name, group, run.data.params, lines, state))
    return runs
