"""docs/launch: the files for Slurm and Kubernetes, run with stand-ins for their programs."""

import importlib
import os
import re
import subprocess

import pytest
import yaml
from absl import flags
from helpers.commands import ROOT

LAUNCH = ROOT / "docs" / "launch"
STAND_INS = {
  "srun": 'echo "srun $*"; exit ${SRUN_CODE:-0}',
  "python": 'echo "python $*"',
  "scontrol": 'echo "scontrol $*"',
}


@pytest.fixture
def shell(tmp_path):
  """Return a function that runs a script with programs that only print their arguments -> (exit code, lines)."""
  for name, text in STAND_INS.items():
    (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / name).chmod(0o755)

  def run(*words, **variables):
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"} | variables
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()

  return run


def train_flags(line):
  """Return the flags in a `run.py train` command; each must be a flag of train."""
  importlib.import_module("experiments.commands.train")
  names = re.findall(r"(?<= --)\w+", line.partition("run.py train")[2])
  assert names
  assert {*names} <= {*flags.FLAGS, "config"}
  return {*names}


def test_slurm_script_starts_resumes_and_requeues(shell, tmp_path):
  script = ("bash", str(LAUNCH / "slurm.sbatch"), "--config=configs/digits.py")
  code, lines = shell(*script)
  assert (code, len(lines)) == (0, 1)
  assert train_flags(lines[0]) == {"config", "workdir", "join_timeout", "max_restarts"}
  assert "--workdir=runs/slurm-7" in lines[0]
  (tmp_path / "runs/slurm-7").mkdir(parents=True)
  (tmp_path / "runs/slurm-7/config.json").touch()
  code, lines = shell(*script, SRUN_CODE="143")
  assert "--resume" in lines[0].split()
  assert (code, lines[1:]) == (143, ["scontrol requeue 7"])
  assert shell(*script, SRUN_CODE="2")[0] == 2


def test_slurm_options():
  """One process per GPU, and SIGTERM two minutes before the time limit."""
  options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", (LAUNCH / "slurm.sbatch").read_text(), re.MULTILINE))
  assert options["ntasks-per-node"] == options["gpus-per-node"]
  assert options["signal"] == "TERM@120"
  assert {"requeue", "nodes", "time"} <= {*options}


def test_kubernetes_names_match_the_flags(shell, tmp_path):
  service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
  spec, pod = job["spec"], job["spec"]["template"]["spec"]
  name = job["metadata"]["name"]
  assert service["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}}
  assert pod["subdomain"] == service["metadata"]["name"]
  assert spec["completionMode"] == "Indexed"
  assert spec["parallelism"] == spec["completions"]
  assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
  [container] = pod["containers"]
  assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]
  assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
  [line] = shell(*container["command"], *container["args"])[1]
  names = train_flags(line)
  assert f"--coordinator={name}-0.{pod['subdomain']}:1234" in line
  assert f"--num_processes={spec['completions']}" in line
  assert "--workdir=/runs" in line
  assert "resume" not in names
  assert (ROOT / re.findall(r"--config=(\S+)", line)[0]).is_file()
