"""`python run.py plan`: a table for a person, a file for a program, and one line for what can't be."""

import json
from itertools import pairwise

import jax
import pytest
from commands import Command, complaint

from ddl.models import MODELS
from ddl.perf.tables import TABLES
from ddl.perf.tables.totals import params_bytes, train_flop
from experiments import config as configs
from experiments.compiled import batch_shapes, compiled_step
from experiments.plan_job import counted, experiment_job, feature_maps

DIGITS = "--config=configs/digits.py"


@pytest.fixture(scope="module")
def experiment():
  config = configs.base()
  config.optimiser.momentum = 0.9
  return configs.build(config), config


def test_a_layer_table(tmp_path):
  file = tmp_path / "plan.json"
  done = Command("plan", "--model=alexnet", "--cluster=dasgd_v100_10g", "--workers=16", f"--json={file}").end()
  assert done.code == 0, done.error
  told = json.loads(file.read_text())
  table = TABLES["alexnet"]
  assert told["settings"]["params_bytes"] == params_bytes(table)
  assert told["settings"]["workers"] == 16
  assert told["settings"]["step"] == pytest.approx(told["examples"] * train_flop(table) / 7.8e12)
  for row in told["rows"]:
    assert any(line.startswith(row["quantity"]) and row["value"] in line for line in done.out.splitlines())
  for speed in told["speeds"]:
    assert speed["algorithm"] in done.out
  assert max(map(len, done.out.splitlines())) <= 120


def test_a_config_and_what_is_asked(tmp_path):
  file = tmp_path / "plan.json"
  asked = (
    "--config.workers=3",
    "--batch=24",
    "--servers=2",
    "--config.algorithm.name=dasgd",
    "--config.algorithm.keep=0",
  )
  done = Command("plan", DIGITS, "--cluster=aws_c4_8xlarge", *asked, f"--json={file}").end()
  assert done.code == 0, done.error
  told = json.loads(file.read_text())
  assert (told["examples"], told["settings"]["workers"], told["settings"]["servers"]) == (24, 3, 2)
  assert "compiled step (XLA, this backend)" in next(
    x["why"] for x in told["rows"] if x["quantity"].startswith("memory")
  )


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (("--model=vgg_a",), "--cluster=NAME is missing; known are cori_fdr"),
    (("--model=vgg_a", "--cluster=cori"), "did you mean 'cori_fdr'? known are"),
    (("--model=vgg", "--cluster=cori_fdr"), "no network named 'vgg'; known are"),
    (("--cluster=cori_fdr",), "give either --config=FILE or --model=NAME"),
    ((DIGITS, "--model=vgg_a", "--cluster=cori_fdr"), "give either --config=FILE or --model=NAME"),
    ((DIGITS, "--cluster=cori_fdr", "--servers=8971"), "8971 servers are more than the 8970 parameters"),
    (("--model=vgg_a", "--cluster=knl_16_parts"), "not even one example fits in 1.07 GB: a step on one needs 2.16 GB"),
    (("--model=vgg_a", "--cluster=pcie_8gpu", "--workers=9"), "the cluster has 8"),
    ((DIGITS, "--cluster=cori_fdr", "--config.sweep.trials=3"), "plan does not read config.sweep.trials"),
  ],
)
def test_what_cannot_be(arguments, words):
  assert words in complaint(Command("plan", *arguments).end())


# ---- what the planner is told of an experiment


def test_the_counted_memory_by_hand(experiment):
  built, config = experiment
  sizes = 64, 64, 64, 10  # the image, two hidden layers, the classes
  assert built.resolved["model"] == {"name": "mlp", "hidden": [64, 64], "dropout": 0.0}
  values = sum((before + 1) * after for before, after in pairwise(sizes))
  found = counted(built, config)
  label = batch_shapes(built, 1)["y"].dtype.itemsize
  assert found.weights == (3 + 1) * 4 * values  # momentum is the fourth
  assert found.maps == 4 * sum(sizes) + label


def test_the_compiled_step_is_the_job(experiment):
  built, config = experiment
  job = experiment_job(built, config)
  assert job.exact(config.batch) == compiled_step(built, config.batch).peak
  assert job.flop_per_example == compiled_step(built, config.batch).flop / config.batch
  assert job.least == config.batch
  assert job.most == built.data.train.size // config.workers
  # The count and the compiler agree on what an example adds, within what fusing saves or keeps twice.
  more = (job.exact(256) - job.exact(128)) / 128
  assert 0.5 < more / job.memory.per_example < 3


def test_feature_maps_of_a_convolution():
  model = MODELS["lenet"]({"task": "classification", "shape": (28, 28, 1), "num_outputs": 10})
  one, two = (
    feature_maps(
      model, {"x": jax.ShapeDtypeStruct((n, 28, 28, 1), "float32"), "y": jax.ShapeDtypeStruct((n,), "int32")}
    )
    for n in (1, 2)
  )
  assert two == 2 * one
  assert one >= 4 * sum(layer.activations for layer in TABLES["lenet"])
