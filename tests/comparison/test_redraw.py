"""Reports regenerated from existing runs, diverged runs, and invalid targets."""

import json
import re

import pytest

SMALL = (
  "--config=configs/digits_compare.py", "--config.steps=20", "--config.eval_every=10", "--config.workers=2",
  "--config.compare.seeds=(0,)", "--only=sync SGD,DaSGD,EASGD",
)  # fmt: skip


def diverging(folder):
  """Write a config with two labels, one of which diverges; return its flag."""
  file = folder / "two.py"
  file.write_text(
    "from ddl.config import base\n\n\ndef get_config():\n  config = base()\n"
    "  config.steps, config.eval_every, config.workers, config.compare.seeds = 20, 10, 2, (0,)\n"
    "  config.compare.algorithms = {\n"
    "    'wild': {'optimizer': {'learning_rate': 1e30}},\n"
    "    'tame': {'workers': 1, 'batch': 64, 'optimizer': {'learning_rate': 0.1}},\n  }\n  return config\n"
  )
  return f"--config={file}"


@pytest.mark.slow
def test_resume_regenerates_a_report_without_training(tmp_path, call):
  workdir = f"--workdir={tmp_path / 'c'}"
  code, out, error = call("compare", *SMALL, workdir)
  assert code == 0, error
  first = json.loads((tmp_path / "c/comparison.json").read_text())
  assert [entry["label"] for entry in first["algorithms"]] == [
    "sync SGD",
    "DaSGD",
    "EASGD",
  ]  # in the order of the config
  assert re.findall(r"^(\w+) (?:SGD )?.*reached$", out, re.M) == ["sync", "DaSGD", "EASGD"]
  before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("c/*/*/metrics.jsonl")}
  about = tmp_path / "c/sync_SGD/seed-0/about.json"
  about.write_text(about.read_text().replace(first["versions"]["jax"], "0.0.1"))
  changes = ("--config.compare.target=0.25", "--config.compare.title=Redrawn", "--resume")
  code, out, error = call("compare", *SMALL, workdir, *changes)
  assert code == 0, error
  assert "to 25 %" in out and "<h1>Redrawn</h1>" in (tmp_path / "c/report.html").read_text()
  assert before == {path: path.stat().st_mtime_ns for path in before}
  record = json.loads((tmp_path / "c/comparison.json").read_text())
  assert record["versions"]["jax"] == "0.0.1" and "--resume" not in record["command"]  # as of the training
  code, _, error = call("compare", *SMALL, workdir, "--config.batch=8", "--resume")
  assert code == 2 and "batch: 16 recorded, 8 now" in error


@pytest.mark.slow
def test_a_divergence_is_reported_and_not_trained_again(tmp_path, call):
  config, folder = diverging(tmp_path), f"--workdir={tmp_path / 'c'}"
  code, _, error = call("compare", config, folder, "--only=wild")
  assert code == 1 and (tmp_path / "c/report.html").is_file()
  lines = error.splitlines()
  assert len(lines) == 1 and lines[0].startswith("compare: all runs diverged")
  failed = tmp_path / "c/wild/seed-0/failed.json"
  assert "diverged" in json.loads(failed.read_text())
  failed.write_text(json.dumps({"diverged": "a recorded reason"}))
  code, out, error = call("compare", config, folder, "--resume")
  assert code == 0 and "a recorded reason" in out and "all runs diverged" not in error
  assert "1 to 2 workers, batch of 32 to 64 per worker" in (tmp_path / "c/report.html").read_text()
  assert re.findall(r"^(?:wild|tame) +(\d+) +(\d+) ", out, re.M) == [("2", "32"), ("1", "64")]
  page = json.loads((tmp_path / "c/comparison.json").read_text())
  assert not {"workers", "batch"} & set(page)  # they are settings of the labels
  assert [entry["settings"]["workers"] for entry in page["algorithms"]] == [2, 1]


@pytest.mark.parametrize("target", ["nan", "95", "0"])
def test_an_accuracy_target_outside_0_to_1_is_refused_before_training(wrong, tmp_path, target):
  flags = [*SMALL, f"--config.compare.target={target}", f"--workdir={tmp_path}/a"]
  wrong(flags, "config.compare.target ", f"{float(target):g}", command="compare")
  assert not (tmp_path / "a").exists()
