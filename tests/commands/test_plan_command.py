"""`python run.py plan`: its table, its JSON file, and one line for each invalid flag."""

import json
import math
import os
import re
import shlex
from itertools import pairwise

import numpy as np
import pytest

from ddl.config import default_experiment
from ddl.costs import step_cost
from ddl.costs.step_cost import batch_shapes, compiled_step, experiment_job, leaves
from ddl.perf import neural_networks
from ddl.perf.cluster_file import named
from ddl.perf.families import Speed, message_bytes
from ddl.perf.layers import StepMemory, params, params_bytes, train_flop
from ddl.perf.placement import Job
from ddl.perf.plan import PlanRequest
from ddl.perf.plan import plan as make_plan
from ddl.perf.plan_text import FEW, LOSSY, MANY, SETTINGS, UNCOMPARED, WORDS, command, effect, text
from ddl.perf.units import bytes_text, percent, rough_rate
from ddl.run.build import build
from experiments.commands import plan

DIGITS = "--config=configs/digits.py"
CUSTOM = """
from ddl.algorithms.collective.local_sgd import local_sgd

def slow_mean(inner, *, period: int = 7):
  \"""A mean every seventh step.\"""
  return local_sgd(inner, period=period)
"""


@pytest.fixture(scope="module")
def experiment():
  return build(default_experiment(optimizer={"momentum": 0.9}))


@pytest.fixture
def planned(call, tmp_path):
  """Arguments of `plan` -> (its output, its JSON record)."""

  def run(*arguments):
    code, out, error = call("plan", *arguments, f"--json={tmp_path}/plan.json")
    assert code == 0, error
    return out, json.loads((tmp_path / "plan.json").read_text())

  return run


def test_layer_table(planned):
  out, record = planned("--model=alexnet", "--cluster=dasgd_v100_10g", "--workers=16")
  table = neural_networks.table("alexnet")
  assert record["settings"]["params_bytes"] == params_bytes(table)
  assert record["settings"]["workers"] == 16
  row = next(row for row in record["rows"] if row["quantity"] == "efficiency of the step")
  share = record["examples"] * train_flop(table) / (15.7e12 * record["settings"]["step"])
  assert row["value"] == percent(share) and "published steps" in row["why"] and "Winograd" in row["limit"]
  for speed in record["speeds"]:
    assert speed["rate"] == pytest.approx(16 * record["examples"] / speed["seconds"])
  best = record["recommended"]
  assert (best["algorithm"], record["examples"]) == ("sync_sgd", 512) and record["enough"]["examples"] in (512, 1024)
  assert f"sync_sgd ({best['setting']})" in out and f"{rough_rate(best['rate'])} examples/s" in out
  keys = [line.split()[0] for line in out.splitlines() if line[:1].isalpha()]
  order = ["run", "speed", "why", "batch", "convergence", "changes", "algorithm"]
  assert [key for key in keys if key in order] == order
  assert record["sizes"][0]["examples"] == 32 and record["hours"] is None
  assert "compare --config=FILE --cluster=dasgd_v100_10g" in out and "Warning" not in out
  lines = [line for line in out.splitlines() if not line.lstrip().startswith("python ")]
  assert max(map(len, lines)) <= 120 and "T_step" not in out
  explained, _ = planned("--model=alexnet", "--cluster=dasgd_v100_10g", "--workers=16", "--explain")
  for row in record["rows"]:
    assert any(line.startswith(row["quantity"]) and row["value"] in line for line in explained.splitlines())
  for speed in record["speeds"]:
    assert speed["algorithm"] in explained


CLUSTER = """
title = "8 desktops"
source = "a test"
price = 0.5
[device]
format = "bfloat16"
peak = 165e12
memory_bandwidth = 1.008e12
memory = 24e9
efficiency = 0.4
[nodes]
count = 8
[link.node]
latency = 50e-6
bandwidth = 1.25e9
"""


def test_hours_and_cost(planned, tmp_path):
  (tmp_path / "desktops.toml").write_text(CLUSTER)
  arguments = "--model=gpt2_124m", f"--cluster={tmp_path}/desktops.toml", "--workers=8"
  for amount, examples in (("--tokens=1e10", 1e10 / 1024), ("--examples=5e6", 5e6)):
    out, record = planned(*arguments, amount)
    hours = examples / record["recommended"]["rate"] / 3600
    assert record["hours"] == pytest.approx(hours)
    assert f"{hours:,.3g} hours ({8 * hours:,.0f} device hours)" in out and f"{4 * hours:,.0f} at 0.5 per" in out
  assert "4 per hour at 0.5" in planned(*arguments)[0]


def test_a_batch_above_the_memory_is_accumulated_and_an_unusual_one_is_reported(planned):
  out, record = planned("--model=gpt2_124m", "--cluster=h100_ib400", "--workers=8", "--batch=600")
  best = record["recommended"]
  assert (best["batch"], best["micro"]) == (4800, 8) and "Warning: 4,800" in out
  (needed,) = re.findall(r"ddl needs --config\.microbatches=(\d+)\.", " ".join(out.split()))
  assert 600 % int(needed) == 0 and int(needed) > 8
  assert f"--config.batch=600 --config.microbatches={needed}" in out


def test_a_single_worker_exchanges_nothing(planned):
  out, record = planned("--model=gpt2_124m", "--cluster=h100_ib400", "--workers=1", "--tokens=1e9")
  assert record["recommended"]["batch"] == 480 and "algorithm  " not in out and "efficien" not in out
  assert record["hours"] == pytest.approx(1e9 / 1024 / record["recommended"]["rate"] / 3600)


@pytest.mark.parametrize(("job", "starred"), [(DIGITS, False), ("--model=resnet50", True)])
def test_a_star_is_explained_if_a_row_has_one(planned, job, starred):
  """One worker is recommended for the digits, so no row of the table of algorithms has a star."""
  out, _ = planned(job, "--cluster=h100_ib400")
  assert ("\n* " in out) == ("*: recommended" in out) == starred


@pytest.mark.parametrize(("workers", "failures"), [(64, False), (4096, True)])
def test_failures_of_large_jobs(planned, workers, failures):
  out, _ = planned("--model=llama_70b", "--cluster=h100_ib400", f"--workers={workers}")
  daily = workers * 419 / 54 / 16_384
  assert (f"{daily:.2g} per day" in out and "2407.21783" in out) == failures
  assert ("ddl does not run this" in out) == failures  # tensor parallelism


def test_a_long_delay_has_no_known_effect(planned):
  """On a slow link a delay of hundreds of steps hides all of the exchange."""
  _, record = planned("--model=gpt2_774m", "--cluster=configs/clusters/volunteers_100m.toml")
  dasgd = Speed(**next(x for x in record["speeds"] if x["algorithm"] == "dasgd"))
  assert dasgd.steps > 4 and dasgd.efficiency == pytest.approx(1)
  assert effect(dasgd, False).startswith("unknown") and effect(dasgd._replace(steps=4), False).startswith("published")
  assert effect(dasgd._replace(steps=4), True).startswith("unknown")
  streaming = next(Speed(**x) for x in record["speeds"] if x["algorithm"] == "streaming_diloco")
  assert effect(streaming, False).startswith("unknown") and effect(streaming, True).startswith("published")


@pytest.mark.slow
def test_recommended_commands_run(call, tmp_path):
  """The command of each algorithm trains with its number of workers and examples."""
  job, cluster = Job("mlp", 4e4, 1e9, StepMemory(1e3, 1e5)), named("two_sites_1g")
  result = make_plan(job, cluster, PlanRequest(batch=8, workers=4, micro=2))._replace(single=None)
  lines = {x.algorithm: command(result, x, cluster, DIGITS) for x in result.speeds}
  one = make_plan(job, cluster, PlanRequest(batch=8, workers=1))
  line = command(one, one.best, cluster, DIGITS)
  assert "--config.workers=1 --config.batch=8 --config.microbatches=1" in line and "precision=bfloat16" in line
  assert "--config.algorithm.group_size=2" in lines["hierarchical_sgd"] and "--members=4" in lines["fsdp"]
  for name in ("hierarchical_sgd", "dasgd", "local_sgd", "sync_sgd"):
    small = "--config.steps=2", "--config.eval_every=2", "--config.model.hidden=(4,)"
    code, _, error = call(*shlex.split(lines[name])[2:], *small, f"--workdir={tmp_path / name}")
    assert code == 0, (lines[name], error)
    config = json.loads((tmp_path / name / "config.json").read_text())
    assert (config["workers"], config["batch"], config["microbatches"]) == (4, 8, 2)
    assert config["precision"] == "bfloat16"


@pytest.mark.parametrize(
  "arguments, steps, precision",
  [("--cluster=h100_ib400 --tokens=1e9", math.ceil(1e9 / 1024 / 480), True),
   ("--cluster=h100_ib400 --examples=4801", 11, True), ("--cluster=h100_ib400", None, True),
   ("--cluster=dasgd_v100_10g --examples=4800", 10, False)],
)  # fmt: skip
def test_a_command_has_the_steps_and_the_precision_of_the_prediction(planned, arguments, steps, precision):
  out, _ = planned("--model=gpt2_124m", "--workers=8", *arguments.split())
  flags = next(line for line in out.splitlines() if "python run.py train" in line).split()
  assert [flag for flag in flags if "config.steps" in flag] == [f"--config.steps={steps}"] * (steps is not None)
  assert ("--config.precision=bfloat16" in flags) == precision
  assert SETTINGS in " ".join(out.split())


def test_a_plan_sends_as_many_bits_as_it_predicts(planned):
  out, record = planned("--model=gpt2_124m", "--cluster=two_sites_1g", "--workers=16")
  best = record["recommended"]
  delay = best["setting"].rpartition(" ")[2]
  assert best["algorithm"] == "streaming_diloco" and "int8" in best["setting"] and UNCOMPARED in " ".join(out.split())
  assert f"--config.algorithm.period=100 --config.algorithm.delay={delay} --config.wrapper.name=int8" in out
  assert WORDS["fragments"] in " ".join(out.split()) and "Expect " not in out


def test_a_plan_names_a_faster_algorithm(planned):
  out, record = planned("--model=gpt2_774m", "--cluster=configs/clusters/rtx4090_16_10g.toml", "--workers=16")
  text, best = " ".join(out.split()), record["recommended"]["rate"]
  known = [x for x in map(lambda x: Speed(**x), record["speeds"]) if not effect(x, True).startswith("unknown")]
  other = max(known, key=lambda x: x.rate)
  assert other.rate > 1.2 * best
  assert f"{other.algorithm} ({other.setting}) would be {other.rate / best:.2g} times as fast, but sync_sgd" in text
  assert "ddl does not run this. It runs sync_sgd (float32 gradients)" in text and LOSSY not in text
  alternatives = [int(number.replace(",", "")) for number in re.findall(r"per worker \(([\d,]+)\):", text)]
  assert all(FEW * 480 <= examples <= MANY * 480 for examples in alternatives)


def test_a_plan_says_how_many_microbatches_fit_with_stored_scores(planned):
  """GPT-2 124M has 12 layers and heads with 1,024^2 scores of 5 bytes; those of Llama 3 8B exceed any device."""
  out, _ = planned("--model=gpt2_124m", "--cluster=h100_ib400", "--workers=8")
  assert f"{12 * 12 * 1024**2 * 5 / 1e6:.0f} MB of attention scores" in " ".join(out.split())
  assert "ddl needs --config.microbatches=2." in " ".join(out.split())
  assert re.search(r"^ *(run +)?python run\.py train .* --config\.microbatches=2 ", out, re.MULTILINE)
  out, _ = planned("--model=llama_8b", "--cluster=h100_ib400", "--workers=256")
  assert "the model needs fused attention" in " ".join(out.split())
  out, _ = planned("--model=resnet50", "--cluster=h100_ib400", "--workers=32")
  assert "attention" not in out


def test_a_plan_has_the_figures_of_loading_sending_and_sharding(planned):
  out, record = planned("--model=resnet50", "--cluster=h100_ib400", "--workers=32", "--examples=1e6")
  rate, batch = record["recommended"]["rate"], record["recommended"]["batch"]
  assert f"have to load {rough_rate(rate / 4)} examples/s" in " ".join(out.split())  # four nodes
  assert f" in {math.ceil(1e6 / batch):,} steps" in " ".join(out.split()) and 1e6 % batch
  out, record = planned("--model=gpt2_124m", "--cluster=two_sites_1g", "--workers=16")
  nbytes = message_bytes(4 * 124_439_808, "int8") / 100 / record["recommended"]["seconds"]  # half of 2 n to each site
  assert f"Each site sends {bytes_text(86_400 * nbytes)} per day" in " ".join(out.split())
  out, _ = planned("--model=llama_8b", "--cluster=h100_ib400", "--workers=256")
  units = 2 * 2 * params(neural_networks.table("llama_8b")[-2:-1])  # two copies of the largest layer, in 16 bits
  whole = 16 * params(neural_networks.table("llama_8b")) / 256 + units
  assert f"{bytes_text(whole)} for parameters" in " ".join(out.split())


def test_large_batches_of_alexnet_need_lars(planned):
  for batch, needed in ((512, True), (64, False)):
    out, _ = planned("--model=alexnet", "--cluster=dasgd_v100_10g", "--workers=16", f"--batch={batch}")
    assert ("--config.optimizer.name=lars" in out) == needed
  assert "optimizer.name" not in planned("--model=resnet50", "--cluster=h100_ib400", "--workers=32")[0]


def test_an_alternative_has_the_batch_for_which_it_is_listed(planned):
  """Groups of four devices with four sequences each would have the batch that is recommended, not twice as many."""
  out, _ = planned("--model=mixtral_8x7b", "--cluster=h200_ib400", "--workers=128")
  assert "tensor_zero1" not in out and "Experts are computed like dense layers" in " ".join(out.split())


def test_a_substitute_is_compared_with_what_ddl_runs(planned):
  out, record = planned("--model=gpt2_774m", "--cluster=configs/clusters/rtx4090_16_10g.toml", "--workers=16")
  assert "ddl also runs streaming_diloco" in " ".join(out.split())
  assert record["recommended"]["setting"] == "bfloat16 gradients"


def test_a_table_has_the_batches_if_they_differ(planned):
  out, _ = planned("--model=llama_70b", "--cluster=h100_ib400", "--workers=4096")
  (head,) = [line for line in out.splitlines() if line.startswith("algorithm")]
  assert "batch" in head.split() and "Warning: all-reduces of nccl were compared" in " ".join(out.split())
  assert "batch" not in next(
    line for line in planned("--model=resnet50", "--cluster=h100_ib400", "--workers=8")[0].splitlines()
    if line.startswith("algorithm")
  ).split()  # fmt: skip


def test_a_plan_says_if_several_workers_are_slower(planned):
  out, record = planned(DIGITS, "--cluster=h100_ib400")
  assert record["one_worker"]["seconds"] < record["recommended"]["seconds"] and "no gain" in out


def test_a_range_of_efficiencies_shows_both_ends(planned):
  """Convolutions on TPUs have no published steps: the middle of a range is planned, and both ends are shown."""
  out, record = planned("--model=resnet50", "--cluster=tpu_v5e", "--workers=8")
  steps = [float(took) for took in re.findall(r"a step on \d+ examples? takes ([\d.]+) ms", " ".join(out.split()))]
  low, high = steps
  assert high < 1e3 * record["settings"]["step"] < low
  assert [1e3 * end["step"] for end in record["ends"]] == pytest.approx(steps, rel=5e-3)
  assert " ".join(out.split()).count("of the memory bandwidth, a step") == 2


def test_sharded_states_of_a_transformer(planned):
  out, record = planned("--model=llama_7b", "--cluster=h100_ib400", "--workers=16", "--explain")
  rows = {row["quantity"]: row for row in record["rows"]}
  assert rows["parameters' states"]["value"] == "sharded over 8" and "16 bytes per parameter" in out
  assert "a sequence of 4,096 tokens" in out


def test_the_size_of_a_transformer_in_the_model_flag(planned):
  name = "transformer:layers=2,width=256,length=512"
  out, record = planned(f"--model={name}", "--cluster=h100_ib400", "--workers=8")
  assert name in out and record["job"].startswith(name) and record["settings"]["workers"] == 8


def test_config_with_a_custom_algorithm(planned, tmp_path):
  file = tmp_path / "custom.py"
  file.write_text(CUSTOM)
  out, record = planned(
    DIGITS, "--cluster=aws_c4_8xlarge", "--config.workers=3", "--batch=24",
    f"--config.algorithm.name={file}:slow_mean",
  )  # fmt: skip
  assert (record["examples"], record["settings"]["workers"]) == (24, 3)
  speed = record["speeds"][-1]
  assert (speed["algorithm"], speed["setting"]) == ("slow_mean", "as configured")
  assert speed["seconds"] >= record["settings"]["step"]
  assert "sends every 7 steps: all-reduce of " in record["sends"] and record["sends"] in " ".join(out.split())


@pytest.mark.parametrize("settings", [(), ("--config.algorithm.name=async_sgd",), ("--config.precision=bfloat16",)])
@pytest.mark.sampled(3)
def test_a_step_of_microbatches_takes_the_sum_of_their_steps(planned, settings):
  (_, one), (_, four) = (
    planned(DIGITS, "--cluster=aws_c4_8xlarge", *settings, size)
    for size in ("--config.batch=4", "--config.microbatches=4")
  )
  assert (four["examples"], four["settings"]["micro"]) == (16, 4)
  assert four["settings"]["step"] == pytest.approx(4 * one["settings"]["step"], rel=1e-12)
  more = pytest.approx(3 * one["settings"]["step"])
  assert four["speeds"][0]["seconds"] - one["speeds"][0]["seconds"] == more
  if "--config.algorithm.name=async_sgd" not in settings:  # the configured sync_sgd sends float32 gradients
    assert four["speeds"][-1]["seconds"] - one["speeds"][-1]["seconds"] == more


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ((DIGITS, "--config.microbatches=4", "--cluster=cori_fdr", "--batch=6"), "batch must be a multiple of"),
    (("--model=vgg_a",), "cluster must be one name or one .toml file, got none. The names are asr, "),
    (("--model=vgg_a", "--cluster=cori"), "Did you mean 'cori_fdr'?"),
    (("--model=vgg", "--cluster=cori_fdr"), "got 'vgg'. Did you mean"),
    (("--cluster=cori_fdr",), "model must be one of"),
    ((DIGITS, "--model=vgg_a", "--cluster=cori_fdr"), "model must be unset when config is set, got vgg_a"),
    (
      ("--model=vgg_a", "--cluster=knl_16_parts", "--workers=1"),
      "not even one example fits in 966 MB: a step on one example needs",
    ),
    (("--model=vgg_a", "--cluster=pcie_8gpu", "--workers=9"), "from 1 to 8"),
    (("--model=llama_7b", "--cluster=h100_ib400", "--workers=1"), "workers must be at least 2 (to hold"),
    (
      ("--model=vgg_a", "--cluster=cori_fdr", "--workers=0"),
      "workers must be an integer >= 1, got 0",
    ),
    (("--model=alexnet", "--cluster=fdr", "--workers=1000000000"), "from 1 to 65,536"),
    (
      (DIGITS, "--cluster=fdr", "--workers=5000"),
      "workers must be at most 1437 (the number of examples of digits), got 5000.",
    ),
    (("--model=vgg_a", "--cluster=cori_fdr", "--exposed=nan"), "exposed must be a finite number, got nan."),
    (("--model=vgg_a", "--cluster=asr", "--tokens=1e9"), "tokens must be unset for a model without sequences"),
    (("--model=gpt2_124m", "--cluster=asr", "--tokens=9", "--examples=9"), "tokens must be unset when examples is set"),
    (
      ("--model=vgg_a", "--cluster=cori_fdr", "--json=/no/such/file"),
      "json must be a file in an existing folder",
    ),
    ((DIGITS, "--cluster=cori_fdr", "--config.sweep.trials=3"), "config.sweep.trials must be unset for plan"),
    (("--model=vgg_a", "--cluster=cori_fdr", "--run=/no/such"), "run must be the folder of a run with metrics.jsonl"),
    (("--model=vgg_a", "--cluster=cori_fdr", "--gradients=int3"), "gradients must be one of float32, bfloat16"),
    (("--model=vgg_a", "--cluster=cori_fdr", f"--batch={10**13}"), "range [1, 1000000000000]"),
  ],
)
def test_invalid_arguments(wrong, arguments, words):
  wrong(arguments, words, command="plan")


def test_a_pipe_is_rejected_without_reading_it(wrong, tmp_path, at_once):
  os.mkfifo(tmp_path / "metrics.jsonl")
  target = ("--model=vgg_a", "--cluster=cori_fdr")
  wrong((*target, f"--run={tmp_path}"), "got a pipe", command="plan")
  wrong((*target, f"--json={tmp_path / 'metrics.jsonl'}"), "json must be a file", command="plan")
  wrong((*target, "--json=\0"), "without NUL", command="plan")


def test_warning_for_steps_shorter_than_their_launch():
  """A cluster that states the time of a launch needs no warning."""
  job = Job("tiny", 4e3, 1e6, StepMemory(1e3, 1e4))
  for name, warning in (("cori_fdr", True), ("h100_ib400", False)):
    cluster = named(name)
    reported = text(job, name, cluster, make_plan(job, cluster, PlanRequest(batch=1, workers=4)))
    assert ("Warning: a step of 0.849 us is shorter" in " ".join(reported.split())) == warning, reported


def test_columns_fit_their_widest_cell():
  job, target = Job("tiny", 4e3, 1e6, StepMemory(1e3, 1e4)), named("cori_fdr")
  result = make_plan(job, target, PlanRequest(batch=1, workers=4))
  long = result._replace(speeds=tuple(x._replace(rate=1.35e11, setting="s" * 40) for x in result.speeds))
  lines = text(job, "cori_fdr", target, long, explain=True).splitlines()
  first = next(i for i, line in enumerate(lines) if line.startswith("algorithm "))
  table = lines[first : first + 1 + len(long.speeds)]
  assert len(set(map(len, table))) == 1
  for line in table[1:]:
    assert line.endswith("  135,000,000,000") and f"  {'s' * 40}  " in line


def test_critical_batch_of_a_measured_run(call, tmp_path):
  (tmp_path / "metrics.jsonl").write_text(
    "\n".join(json.dumps({"step": step, "noise_scale": scale}) for step, scale in ((0, 10.0), (5, 4000.0))) + "\n"
  )
  assert plan.read(str(tmp_path)) == 4000
  code, out, error = call("plan", "--model=alexnet", "--cluster=dasgd_v100_10g", "--workers=16", f"--run={tmp_path}")
  assert code == 0, error
  assert "The critical batch B_c is 4,000 examples" in out
  (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0}) + "\n")
  with pytest.raises(ValueError, match="run must be the folder of a run that measured"):
    plan.read(str(tmp_path))


# ---- the job that the planner derives from an experiment


def test_memory_of_a_network_equals_the_sum_of_arrays(experiment):
  built = experiment
  sizes = 64, 64, 64, 10  # the image, two hidden layers, the classes
  assert built.experiment.model.to_json() == {"name": "mlp", "hidden": [64, 64], "dropout": 0.0}
  values = sum((before + 1) * after for before, after in pairwise(sizes))
  result = experiment_job(built).memory
  label = batch_shapes(built, 1)["y"].dtype.itemsize
  # Parameters, momentum and gradients; the other arguments are the number of the step, a key and the like.
  assert 0 <= result.fixed - 3 * 4 * values <= 128
  # Each hidden layer has a product and the values of its activation function; the loss has its logits and their sum.
  assert result.per_example == 4 * (64 + 2 * 64 + 2 * 64 + 10 + 1) + label


def test_a_step_is_compiled_once_for_each_number_of_examples(experiment, monkeypatch):
  compiled, examples = step_cost.compiled_step, []
  monkeypatch.setattr(
    step_cost, "compiled_step", lambda components, count: examples.append(count) or compiled(components, count)
  )
  job = step_cost.experiment_job(experiment)
  assert examples == [job.least, 2 * job.least] and job.remat is None


def test_the_job_has_the_figures_of_the_compiled_step(experiment):
  built, config = experiment, experiment.experiment
  job = experiment_job(built)
  assert job.flop_per_example == pytest.approx(compiled_step(built, config.batch).flop / config.batch)
  assert job.least == config.batch
  assert (job.data, job.most) == (built.data.train.size, built.data.train.size // config.workers)
  assert experiment_job(built, 2 * config.workers).most == built.data.train.size // (2 * config.workers)
  few, more = compiled_step(built, config.batch), compiled_step(built, 2 * config.batch)
  for examples, compiled in ((config.batch, few), (2 * config.batch, more)):  # the parts move what XLA counts
    assert 4 * sum(part.moved * examples + part.held for part in job.step) == pytest.approx(compiled.nbytes)
  sizes = [leaf.nbytes for leaf in leaves(built.model, batch_shapes(built, 1))]
  assert [part.held / job.step[0].held for part in job.step] == pytest.approx([n / sizes[0] for n in sizes])


def test_memory_of_microbatches_is_one_microbatch_gradients_and_examples():
  settings = {"optimizer": {"momentum": 0.9}}
  one, four = (
    build(default_experiment(**settings, **size)) for size in ({"batch": 8}, {"batch": 32, "microbatches": 4})
  )
  single, several = experiment_job(one), experiment_job(four)
  assert several.step == single.step and several.least == single.least == 8
  example = 64 * 4 + one.data.train.take(np.arange(1))["y"].itemsize
  assert several.memory.per_example == single.memory.per_example + 3 * example
  assert several.memory.fixed == single.memory.fixed + several.params_bytes


@pytest.mark.slow
def test_flag_batch_overrides_the_configs(planned):
  for arguments, examples in (((), 16), (("--config.batch=24",), 24), (("--config.batch=24", "--batch=8"), 8)):
    out, record = planned(DIGITS, "--cluster=cori_fdr", "--explain", *arguments)
    assert record["examples"] == examples and ("as requested: 8 / " in out) == (len(arguments) == 2)


def test_a_config_on_text_is_planned_in_tokens(planned):
  flags = ("--config=configs/text_transformer.py", "--config.model.layers=1", "--config.data.length=32")
  out, record = planned(*flags, "--cluster=ethernet_10g", "--tokens=3.2e6")
  assert record["hours"] == pytest.approx(1e5 / record["recommended"]["rate"] / 3600)
  assert "published for language models" not in out and "published for images" in out
