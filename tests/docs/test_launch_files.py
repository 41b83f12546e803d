"""docs/launch: what Slurm and Kubernetes read, checked without either: scripts run with stand-ins for their tools."""

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
  """Runs a script in a folder where srun, scontrol and python only say how they were called; (code, lines)."""
  for name, text in STAND_INS.items():
    (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / name).chmod(0o755)

  def run(*words, **variables):
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"} | variables
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()

  return run


def known(line):
  """Check that each flag is one of train's."""
  importlib.import_module("experiments.commands.train")
  names = re.findall(r"(?<= --)\w+", line.partition("run.py train")[2])
  assert names
  assert {*names} <= {*flags.FLAGS, "config"}
  return {*names}


def test_slurm_starts_resumes_and_requeues(shell, tmp_path):
  script = ("bash", str(LAUNCH / "slurm.sbatch"), "--config=configs/digits.py")
  code, lines = shell(*script)
  assert (code, len(lines)) == (0, 1)
  assert known(lines[0]) == {"config", "workdir", "join_timeout", "max_restarts"}
  assert "--workdir=runs/slurm-7" in lines[0]
  (tmp_path / "runs/slurm-7").mkdir(parents=True)
  (tmp_path / "runs/slurm-7/config.json").touch()
  code, lines = shell(*script, SRUN_CODE="143")
  assert "--resume" in lines[0].split()
  assert (code, lines[1:]) == (143, ["scontrol requeue 7"])
  assert shell(*script, SRUN_CODE="2")[0] == 2


def test_slurm_is_asked_for_one_process_per_gpu_and_a_signal_in_time():
  asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", (LAUNCH / "slurm.sbatch").read_text(), re.MULTILINE))
  assert asked["ntasks-per-node"] == asked["gpus-per-node"]
  assert asked["signal"] == "TERM@120"
  assert {"requeue", "nodes", "time"} <= {*asked}


def test_kubernetes_has_the_names_that_its_pods_are_told(shell, tmp_path):
  service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
  spec, pod = job["spec"], job["spec"]["template"]["spec"]
  name = job["metadata"]["name"]
  assert service["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}}
  assert pod["subdomain"] == service["metadata"]["name"]
  assert spec["completionMode"] == "Indexed"
  assert spec["parallelism"] == spec["completions"]
  assert pod["restartPolicy"] == "Never"  # which a podFailurePolicy asks for
  [container] = pod["containers"]
  assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]
  assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in pod["volumes"]]
  [line] = shell(*container["command"], *container["args"])[1]
  names = known(line)
  assert f"--coordinator={name}-0.{pod['subdomain']}:1234" in line
  assert f"--num_processes={spec['completions']}" in line
  assert "--workdir=/runs" in line
  assert "resume" not in names
  assert (ROOT / re.findall(r"--config=(\S+)", line)[0]).is_file()
