"""What a user gets wrong: one line on stderr that says what and what would work, exit code 2, nothing lost."""

import json
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from helpers.commands import ROOT, Command, complaint, metrics

from ddl.runtime.checkpoint import Checkpoints
from experiments.commands import cli, config_flag
from experiments.config.experiment import Experiment
from experiments.train import build, compare, sweep, train
from experiments.train.run_dir import RunFolder
from experiments.train.workdir import without

RUNS = (train, compare, sweep)

DIGITS = "--config=configs/digits.py"
QUICK = [DIGITS, "--config.steps=4", "--config.eval_every=2", "--devices=1"]


NAMES = [
  ("algorithm", "dasdg", "did you mean 'dasgd'?", "sync_sgd, sharded_sync_sgd, local_sgd"),
  ("algorithm", "xyz", "no algorithm named 'xyz': known are"),
  ("model", "resnet", "did you mean 'resnet20'?", "linear, mlp, lenet"),
  ("data", "digit", "did you mean 'digits'?", "npz, idx, text, tfds"),
  ("partition", "dirichle", "did you mean 'dirichlet'?", "iid, sharded"),
  ("optimizer", "adamv", "did you mean 'adam", "sgd, adam, adamw"),
  ("schedule", "cosin", "did you mean 'cosine'?", "constant, cosine, decay"),
]


@pytest.mark.parametrize("case", NAMES, ids=lambda case: case[0])
def test_unknown_names(wrong, case):
  part, name, *words = case
  wrong([*QUICK, f"--config.{part}.name={name}"], f"no {part} named '{name}'", *words)


KEYS = [
  (["--config.algorithm.perid=3"], "no key 'perid' in config.algorithm", "did you mean 'period'?"),
  (["--config.stepz=3"], "no key 'stepz' in config", "did you mean 'steps'?"),
  (["--config.optimiser.name=sgd"], "no key 'optimiser' in config", "did you mean 'optimizer'?"),
  (["--config.steps.more=3"], "no key 'more' in config.steps"),
  (["--config.algorithm.delay=3"], "config.algorithm.delay is set", "'sync_sgd' does not read it"),
  (["--config.algorithm.name=local_sgd", "--config.algorithm.keep=0.5"], "config.algorithm.keep", "it takes period"),
  (["--config.model.layers=3"], "config.model.layers is set", "'mlp' does not read it", "hidden"),
  (["--config.data.path=/x"], "config.data.path is set", "'digits' does not read it"),
  (["--config.partition.concentration=1.0"], "config.partition.concentration", "'iid'"),
  (["--config.optimizer.b1=0.5"], "config.optimizer.b1", "'sgd' does not read it"),
  (["--config.schedule.warmup=5"], "config.schedule.warmup", "'constant'"),
  (["--config.algorithm.name=post_local_sgd"], "config.algorithm.start must be set for 'post_local_sgd'"),
  (["--config.partition.name=dirichlet"], "config.partition.concentration", "must be set for 'dirichlet'"),
]
VALUES = [
  (["--config.steps=many"], "config.steps", "many"),
  (["--config.steps=2.5"], "config.steps", "2.5"),
  (["--config.batch=0"], "config.batch is 0"),
  (["--config.steps=0"], "config.steps is 0"),
  (["--config.workers=-8"], "config.workers is -8"),
  (["--config.eval_every=0"], "config.eval_every is 0"),
  (["--config.optimizer.learning_rate=-1"], "config.optimizer.learning_rate is -1"),
  (["--config.optimizer.learning_rate=fast"], "config.optimizer.learning_rate", "fast"),
  (["--config.steps"], "--config.steps has no value"),
  (["--config.algorithm.name=dasgd", "--config.algorithm.keep=1.5"], "keep is 1.5", "0..1"),
  (["--config.algorithm.name=local_sgd", "--config.algorithm.period=0"], "period is 0"),
  (["--config.algorithm.name=local_sgd", "--config.algorithm.period=often"], "config.algorithm.period", "often"),
  (["--config.batch=2000"], "batch of 2000", "1437"),
  (["--config.batch=200", "--config.partition.name=sharded"], "batch of 200", "shard of 179"),
  (["--config.partition.name=dirichlet", "--config.partition.concentration=0.01", "--config.batch=64"],
   "batch of 64", "a more even partition"),
  (["--config.model.name=transformer"], "config.model.hidden is set", "--config.model.hidden=None unsets it"),
  (["--config.model.name=transformer", "--config.model.hidden=None"], "transformer", "token"),
  (["--devices=3"], "8 workers", "3 devices", "1, 2, 4, 8"),
  (["--devices=16"], "8 workers", "16 devices", "1, 2, 4, 8"),
  (["--processes=3", "--devices=0"], "3 processes", "8 workers", "1, 2, 4, 8"),
  (["--processes=2"], "2 processes", "1 devices"),
  (["--steps_per_call=-1"], "steps_per_call", "-1"),
  (["--virtual_grad=fast"], "virtual_grad", "fast", "unroll|vmap|map"),
  (["--no_such_flag=1"], "no_such_flag"),
  (["--worksdir=x"], "worksdir"),
  (["dasgd"], "unknown argument 'dasgd'"),
  (["--resume", "--workdir="], "--resume needs the folder"),
  (["--devices=two"], "--devices=two is no integer"),
  (["--config.batch=two"], "--config.batch=two is no integer"),
  (["--config.network.exchange_seconds=long"], "--config.network.exchange_seconds=long is no number"),
  (["--config.optimizer.nesterov=3"], "--config.optimizer.nesterov=3 is neither True nor False"),
  (["--config.algorithm={}"], "config.algorithm is a section; set its keys, such as --config.algorithm."),
  (["--config.compare.algorithms.x=1"], "no key 'x' in config.compare.algorithms"),
  (["--workdir=/proc/x"], "--workdir=/proc/x: nothing can be written in /proc"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*KEYS, *VALUES], ids=lambda case: " ".join(case[0]))
def test_what_a_flag_can_get_wrong(wrong, tmp_path, case):
  arguments, *words = case
  wrong([*QUICK, *arguments], *words)
  assert not (tmp_path / "run").exists()


def files(folder):
  """What is wrong with a data or config file, made in `folder`: (arguments, words)."""
  (folder / "text.npz").write_text("hello")
  np.savez(folder / "names.npz", pictures=np.zeros(3))
  np.savez(folder / "few.npz", image=np.zeros((5, 4, 4), np.uint8), label=np.zeros(4, np.int32))
  (folder / "cut.npz").write_bytes((folder / "few.npz").read_bytes()[:-30])
  (folder / "empty.txt").write_text("")
  (folder / "idx").mkdir()
  for name, text in {
    "syntax": "def get_config(:",
    "typo": "from experiments.config import base\ndef get_config():\n  c = base()\n  c.stepz = 3\n  return c",
    "type": "from experiments.config import base\ndef get_config():\n  c = base()\n  c.steps = 'x'\n  return c",
    "none": "x = 1",
    "dict": "def get_config():\n  return {}",
    "import": "import no_such_module",
  }.items():
    (folder / f"{name}.py").write_text(text)
  npz, text = ("--config.data.name=npz", "--config.data.name=text")
  return {
    "npz missing": ([npz, f"--config.data.path={folder}/no.npz"], "no.npz", "no such file"),
    "npz unset": ([npz], "--config.data.path="),
    "npz text": ([npz, f"--config.data.path={folder}/text.npz"], "text.npz", "not a .npz file"),
    "npz names": ([npz, f"--config.data.path={folder}/names.npz"], "pictures", "image and label"),
    "npz few": ([npz, f"--config.data.path={folder}/few.npz"], "few.npz", "4 labels"),
    "npz cut": ([npz, f"--config.data.path={folder}/cut.npz"], "cut.npz"),
    "idx": (["--config.data.name=idx", f"--config.data.path={folder}/idx"], "train-images-idx3-ubyte"),
    "text empty": (
      [text, f"--config.data.path={folder}/empty.txt", "--config.model.name=transformer", "--config.model.hidden=None"],
      "is empty",
    ),
    "config missing": ([f"--config={folder}/no.py"], "not a config file", "configs/digits.py"),
    "config folder": ([f"--config={folder}"], str(folder)),
    "config unset": (["--config="], "--config=FILE is missing"),
    "config syntax": ([f"--config={folder}/syntax.py"], "syntax.py, line 1: SyntaxError: invalid syntax"),
    "config typo": (
      [f"--config={folder}/typo.py"],
      "typo.py, line 4",
      '"stepz" does not exist',
      'Did you mean "steps"',
    ),
    "config type": ([f"--config={folder}/type.py"], "type.py, line 4", "steps"),
    "config none": ([f"--config={folder}/none.py"], "none.py: AttributeError", "get_config"),
    "config dict": ([f"--config={folder}/dict.py"], "dict.py", "base()"),
    "config import": ([f"--config={folder}/import.py"], "import.py, line 1", "no_such_module"),
  }


def test_missing_and_malformed_files(wrong, tmp_path):
  for name, (arguments, *words) in files(tmp_path).items():
    wrong([*QUICK, *arguments], *words)
    assert not (tmp_path / "run").exists(), name


# ---- folders


def test_folders(call, wrong, tmp_path):
  code, out, error = call("train", *QUICK)
  assert code == 0 and not error and "step 4" in out
  assert "\ncompiling\n" in out and float(out.split("compiled in ")[1].split(" s")[0]) > 0
  lines = (tmp_path / "run" / "metrics.jsonl").read_text()
  wrong(QUICK, f"{tmp_path}/run holds a run already", "--resume")
  other = [*QUICK, "--resume", "--config.batch=8", "--config.algorithm.name=dasgd"]
  wrong(other, "another config", "batch: 16 there, 8 here", "algorithm.name: sync_sgd there, dasgd here")
  (tmp_path / "run" / "result.json").unlink()  # else there is nothing left to do, on any devices
  wrong([*QUICK, "--resume", "--devices=2"], "was run as", "1 device(s)", "2 device(s)", "--devices")
  wrong([*QUICK, "--resume", "--steps_per_call=1"], "was run as", "--steps_per_call")
  wrong([*QUICK, "--resume", f"--workdir={tmp_path}/none"], "holds nothing to resume")
  (tmp_path / "file").write_text("")
  wrong([*QUICK, f"--workdir={tmp_path}/file"], f"{tmp_path}/file")
  assert (tmp_path / "run" / "metrics.jsonl").read_text() == lines
  code, out, error = call("train", *QUICK, "--resume")
  assert code == 0 and not error and "step 4" in out
  assert (tmp_path / "run" / "metrics.jsonl").read_text() == lines


def test_a_folder_of_another_command_is_left_alone(wrong, tmp_path, nothing_starts):
  (tmp_path / "about.json").write_text('{"command": "python run.py compare --config=x.py"}')
  for command in ("train", "compare", "sweep"):
    flags = ["--config=configs/digits_compare.py", f"--workdir={tmp_path}"]
    wrong(flags, f"{tmp_path} holds the work of another command", "another --workdir", command=command)
  assert [path.name for path in tmp_path.iterdir()] == ["about.json"]


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_no_model_is_traced_before_the_devices_start(monkeypatch, tmp_path, command):
  """A model may ask for the backend, which fixes the number of devices."""

  class Started(BaseException):
    pass

  def started(*_):
    raise Started

  for module in RUNS:
    monkeypatch.setattr(module, "start_devices", started)
  monkeypatch.setattr(jax, "default_backend", lambda: pytest.fail("a model was traced"))
  with pytest.raises(Started):
    cli.run(command, ["--config=configs/sc17_lenet.py", f"--workdir={tmp_path}"])


@pytest.fixture
def nothing_starts(monkeypatch):
  """Data and devices are not touched."""

  def touched(*_):
    pytest.fail("data was loaded or devices were started")

  monkeypatch.setattr(build, "load", touched)
  for module in RUNS:
    monkeypatch.setattr(module, "start_devices", touched)


def test_folders_are_refused_before_data_is_loaded(wrong, call, tmp_path, nothing_starts):
  config = config_flag.load(ROOT / "configs" / "digits_compare.py")
  label = "--only=EASGD"
  for command, run in (("train", ""), ("compare", "EASGD/seed-1"), ("sweep", "EASGD/trial-1")):
    folder = RunFolder(tmp_path / command / run)
    folder.create(replace(Experiment.from_config(config), batch=3), {"command": "python run.py train --config=x.py"})
    flags = ["--config=configs/digits_compare.py", f"--workdir={tmp_path}/{command}", *[label][: command != "train"]]
    wrong(flags, f"{folder.path} holds a run already", command=command)
    wrong([*flags, "--resume"], f"{folder.path} holds a run of another config (", "batch: 3 there, ", command=command)
  (tmp_path / "train" / "config.json").write_text(json.dumps(Experiment.from_config(config).to_json()))
  (tmp_path / "train" / "result.json").write_text('{"step": 400, "test_loss": 0.25}')
  code, out, error = call("train", "--config=configs/digits_compare.py", f"--workdir={tmp_path}/train", "--resume")
  assert code == 0 and not error and out == f"step 400, test_loss 0.25\n{tmp_path}/train is complete\n"


def test_what_a_folder_records_of_its_command(wrong, tmp_path, nothing_starts):
  wrong(["--resume", "--workdir="], "--resume needs the folder to continue: --workdir=")
  wrong(["--resume"], f"{tmp_path}/run holds nothing to resume")
  (tmp_path / "run").mkdir()
  file = tmp_path / "run" / "experiment.json"
  wrong(["--resume"], f"{file}, ", "is missing", "give the whole command: --config=FILE")
  good = {"command": "compare", "arguments": [], "options": {}, "config": {}}
  damaged = [
    {"arguments": 3}, {"options": []}, {"options": {"no_such_flag": 1}}, {"options": {"devices": "two"}}, {"config": 3},
    {"config": {"no_such_key": 1}}, {"config": {"steps": "two"}}, {"config": {"model": 3}},
  ]  # fmt: skip
  for text in ("{", "{}", "[]", '{"command": 3}', *[json.dumps(good | each) for each in damaged]):
    file.write_text(text)
    wrong(["--resume"], f"{file}, ", "is damaged", "give the whole command: --config=FILE")
  file.write_text(json.dumps(good))
  wrong(["--resume"], "is of a `compare`, not of a `train`")


def test_recorded_arguments_without_those_that_say_where():
  words = ["--config", "x.py", "--workdir", "a b", "-resume", "--workdir=c", "--resume=true", "--workdirs=1", "workdir"]
  assert without(words) == ["--config", "x.py", "--workdirs=1", "workdir"]


@pytest.mark.parametrize("name", ["", "none/x.json"])
def test_a_file_that_cannot_be_written_is_found_at_once(wrong, tmp_path, name):
  flags = ["--model=vgg_a", "--cluster=cori_fdr", f"--json={tmp_path}/{name}"]
  wrong(flags, f"--json={tmp_path}/{name}: ", "give a file in a folder that exists", command="plan")


# ---- divergence

RATE = "--config.optimizer.learning_rate="


def finite(folder, step):
  checkpoints = Checkpoints(folder / "checkpoints")
  assert checkpoints.latest() == step
  leaves = jax.tree.leaves(checkpoints._manager.restore(step).carry)
  checkpoints.close()
  return leaves and all(np.isfinite(x).all() for x in leaves)


@pytest.mark.parametrize("algorithm", ["sync_sgd", "local_sgd"])
def test_a_diverged_run_keeps_the_last_good_checkpoint(wrong, tmp_path, algorithm):
  arguments = [
    DIGITS, "--devices=1", "--config.steps=600", "--config.eval_every=2", "--config.data.name=least_squares",
    "--config.model.name=linear", "--config.model.hidden=None", "--checkpoint_every=1",
    f"--config.algorithm.name={algorithm}", f"{RATE}30.0",
  ]  # fmt: skip
  error = wrong(arguments, f"{algorithm} diverged: ", "learning_rate below 30.0", "the last good checkpoint, of step ")
  kept = metrics(tmp_path / "run")
  assert len(kept) > 2 and all(np.isfinite(v) for line in kept for v in line.values())
  step = int(error.split("of step ")[1].split(",")[0])
  assert finite(tmp_path / "run", step) and step == kept[-1]["step"]
  assert not (tmp_path / "run" / "result.json").exists()
  again = wrong([*arguments, "--resume"], "diverged: ")
  assert again == error and metrics(tmp_path / "run") == kept


def test_parameters_that_leave_the_numbers_behind_a_finite_loss(wrong, tmp_path):
  """The first step's loss is finite, its update is not."""
  error = wrong([*QUICK, "--checkpoint_every=1", "--steps_per_call=1", f"{RATE}1e39"], "diverged: ", "after step 1")
  assert "there was no checkpoint yet" in error and len(metrics(tmp_path / "run")) == 1


def test_a_loss_that_is_no_number_names_its_step(wrong):
  wrong([*QUICK, "--steps_per_call=4", "--config.eval_every=4", f"{RATE}3e38"], "its loss is ", " at step 2;")


# ---- as real processes


def test_two_real_mistakes(tmp_path):
  first = Command("train", DIGITS, "--config.algorithm.name=dasdg", f"--workdir={tmp_path}/a")
  second = Command("train", DIGITS, f"{RATE}3e38", f"--workdir={tmp_path}/b", "--config.steps=20")
  assert complaint(first.end()).startswith(
    "train: no algorithm named 'dasdg': did you mean 'dasgd'? known are sync_sgd"
  )
  line = complaint(second.end())
  assert "sync_sgd diverged: its loss is nan at step 2; a config.optimizer.learning_rate below 3e+38 may help" in line


def test_the_command_itself():
  for arguments, code, words in (
    (["--help"], 0, "compare"),
    ([], 0, "usage: python run.py COMMAND"),
    (["trian"], 2, "no command 'trian'; known are train"),
    (["train", "--help"], 0, "--virtual_grad"),
  ):
    done = Command(*arguments).end()
    assert done.code == code and words in (done.error if code else done.out), done
    assert "Traceback" not in done.error


def test_help_does_not_wait_for_jax():
  code = "import sys, runpy; sys.argv = ['run.py', '--help']\ntry: runpy.run_path('run.py', run_name='__main__')\n"
  code += (
    "except SystemExit as e: assert not e.code\nassert not {'jax', 'numpy', 'absl', 'experiments'} & set(sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_a_missing_library_is_named():
  done = subprocess.run(
    [sys.executable, "-S", "run.py", "list"], cwd=ROOT, check=False, timeout=60, capture_output=True, text=True
  )
  assert done.returncode == 2 and done.stderr.count("\n") == 1, done
  assert "is not installed here; python -m pip install -r requirements.txt" in done.stderr
