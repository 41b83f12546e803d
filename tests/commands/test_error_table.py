"""A table of user errors: exit code 2 and one line with the invalid key or path, before anything is written."""

import json
import os
import zipfile

import numpy as np
import pytest
from helpers.data_files import write_tokens

DIGITS, COMPARE = "--config=configs/digits.py", "--config=configs/digits_compare.py"
ASYNC, SERVER = "--config=configs/async_easgd_digits.py", "--config.algorithm.name=async_sgd"
QUICK = (DIGITS, "--config.steps=4", "--config.eval_every=2", "--devices=1")
NPZ, TEXT, HUGE = "--config.data.name=npz", "--config.data.name=text", 10**9
TOKENS = "--config.data.name=tokens --config.data.length=8 --config.data.path={0}/"
TRANSFORMER = ("--config.model.name=transformer", "--config.model.hidden=None")
CLUSTER = ("--model=vgg_a", "--cluster=cori_fdr")
FLAGS = [  # arguments added to a valid short `train`, and parts of the error message
  ("--config.algorithm.name=dasdg", "'dasdg'", "'dasgd'"),
  ("--config.algorithm.name=xyz", "'xyz'", "sync_sgd"),
  ("--config.model.name=resnet", "'resnet50'"),
  ("--config.data.name=digit", "'digits'"),
  ("--config.partition.name=dirichle", "'dirichlet'"),
  ("--config.optimizer.name=adamv", "'adam"),
  ("--config.schedule.name=cosin", "'cosine'"),
  ("--config.algorithm.perid=3", "config.algorithm.perid", "'period'"),
  ("--config.stepz=3", "config.stepz", "'steps'"),
  ("--config.optimiser.name=sgd", "config.optimiser", "'optimizer'"),
  ("--config.steps.more=3", "config.steps.more"),
  ("--config.algorithm.delay=3", "config.algorithm.delay", "'sync_sgd'"),
  ("--config.algorithm.name=local_sgd --config.algorithm.keep=0.5", "config.algorithm.keep", "period"),
  ("--config.model.layers=3", "config.model.layers", "'mlp'", "hidden"),
  ("--config.data.path=/x", "config.data.path", "'digits'"),
  ("--config.partition.concentration=1.0", "config.partition.concentration", "'iid'"),
  ("--config.optimizer.b1=0.5", "config.optimizer.b1", "'sgd'"),
  ("--config.schedule.floor=0.5", "config.schedule.floor", "'constant'"),
  ("--config.algorithm.name=post_local_sgd", "config.algorithm.start"),
  ("--config.partition.name=dirichlet", "config.partition.concentration"),
  ("--config.steps=many", "config.steps"),
  ("--config.steps=2.5", "config.steps"),
  ("--config.batch=0", "config.batch"),
  ("--config.batch=None", "config.batch"),
  ("--config.batch=two", "config.batch", "two"),
  ("--config.steps=0", "config.steps"),
  ("--config.steps=1000000000000", "config.steps"),
  ("--config.workers=-8", "config.workers"),
  (f"--config.workers={HUGE}", "config.workers"),
  (f"{SERVER} --config.workers={HUGE}", "config.workers"),
  ("--config.eval_every=0", "config.eval_every"),
  ("--config.optimizer.learning_rate=-1", "config.optimizer.learning_rate"),
  ("--config.optimizer.learning_rate=fast", "config.optimizer.learning_rate"),
  ("--config.optimizer.learning_rate=inf", "config.optimizer.learning_rate"),
  ("--config.optimizer.weight_decay=inf", "config.optimizer.weight_decay"),
  ("--config.optimizer.nesterov=3", "config.optimizer.nesterov", "True", "3"),
  ("--config.network.exchange_seconds=long", "config.network.exchange_seconds", "long"),
  ("--config.network.message_seconds=-1.0", "config.network.message_seconds"),
  ("--config.steps", "--config.steps"),
  ("--config.algorithm={}", "config.algorithm", "--config.algorithm."),
  ("--config.compare.algorithms.x=1", "config.compare.algorithms.x"),
  ("--config.algorithm.name=dasgd --config.algorithm.keep=1.5", "keep must be in [0, 1], got 1.5."),
  ("--config.algorithm.name=local_sgd --config.algorithm.period=0", "config.algorithm.period"),
  ("--config.algorithm.name=local_sgd --config.algorithm.period=often", "config.algorithm.period"),
  (f"--config.algorithm.name=local_sgd --config.algorithm.period={10**19}", "config.algorithm.period"),
  (f"--config.algorithm.name=local_sgd --config.algorithm.period={10**18}", "config.algorithm.period"),
  ("--config.batch=2000", "config.batch", "got 2000", "1437"),
  ("--config.batch=200 --config.partition.name=sharded", "config.batch", "got 200", "179"),
  ("--config.partition.name=dirichlet --config.partition.concentration=0.01 --config.batch=64", "batch", "got 64"),
  ("--config.model.name=transformer", "data of transformer must be token sequences", "mlp"),
  (" ".join(TRANSFORMER), "transformer", "token"),
  (f"--config.model.hidden={HUGE},{HUGE}", "GB"),
  (f"{SERVER} --runtime=threads --config.model.hidden={HUGE},{HUGE}", "GB"),
  (f"{SERVER} --runtime=threads --config.workers=100000", "config.workers"),
  (f"{SERVER} --config.steps=2000000000", "visits"),
  ("--devices=3", "8 workers", "devices must be", "got 3", "1, 2, 4, 8"),
  ("--devices=16", "devices must be", "got 16", "1, 2, 4, 8"),
  (f"--config.workers={10**6} --devices={10**6}", "devices must be below", f"got {10**6}"),
  (f"--config.workers={10**6} --devices={10**6} --processes=2", "(2 processes x", f"got {10**6}"),
  (f"--devices=2 --members={10**7}", "members must be below", f"got {10**7}"),
  ("--devices=two", "devices must", "two"),
  ("--members=0", "members must", "0"),
  ("--members=3 --devices=4", "8 workers of 3 members", "got 4", "3, 6, 12, 24"),
  ("--members=3 --devices=3", "config.batch must be a multiple of 3", "got 16"),
  ("--members=2 --devices=2 --sharding=tensr", "'tensr'", "fsdp, hybrid, tensor"),
  ("--sharding=tensor", "sharding must", "tensor", "members"),
  ("--members=2 --devices=2 --config.algorithm.name=async_sgd", "members must be 1", "async_sgd"),
  ("--members=2 --devices=2 --config.algorithm.name=async_sgd --runtime=threads", "members must", "simulator"),
  ("--processes=3 --devices=0", "processes must be", "got 3", "1, 2, 4, 8"),
  ("--processes=2", "processes must be", "devices=1", "got 2"),
  ("--steps_per_call=-1", "steps_per_call"),
  ("--virtual_grad=fast", "virtual_grad", "unroll, vmap, map"),
  ("--no_such_flag=1", "no_such_flag"),
  ("--worksdir=x", "worksdir"),
  ("--config_workers=4", "config_workers"),
  ("--configx", "configx"),
  ("--config-foo=3", "config-foo"),
  ("dasgd", "'dasgd'"),
  ("--resume --workdir=", "workdir must be set with resume (to the folder to resume"),
  ("--workdir=/proc/x", "workdir must", "/proc/x"),
  ("--workdir={0}/\udcff", "\\udcff"),
  ("--workdir=~nobody-has-this-name/x", "~nobody-has-this-name/x"),
  ("--workdir=gs://bucket/x", "gs://bucket/x"),
  ("--resume --workdir={0}/deep", "{0}/deep/config.json"),
  (f"{NPZ} --config.data.path=gs://bucket/x", "gs://bucket/x"),
  (f"{NPZ} --config.data.path={{0}}/no.npz", "{0}/no.npz"),
  (NPZ, "config.data.path must be set"),
  *((f"{NPZ} --config.data.path={{0}}/{name}", f"{{0}}/{name}") for name in (
    "text.npz", "names.npz", "few.npz", "cut.npz", "width.npz", "features.npz", "pickled.npz", "bytes.npz", "pipe")),
  (f"{NPZ} --config.data.path=/dev/zero", "/dev/zero"),
  ("--config.data.name=idx --config.data.path={0}/deep", "train-images-idx3-ubyte"),
  ("--config.data.name=image_folder", "config.data.path must be set", "train/CLASS"),
  ("--config.data.name=image_folder --config.data.path={0}/no", "{0}/no"),
  ("--config.data.name=image_folder --config.data.path={0}/deep", "{0}/deep must be two or more", "no folders"),
  ("--config.data.name=image_folder --config.data.path={0}/text.npz", "the file {0}/text.npz"),
  ("--config.data.name=image_folder --config.data.path={0}/images", "{0}/images/a/x.png", "must be readable"),
  (f"{NPZ} --config.data.path={{0}}/few.npz --config.data.augment=flips", "config.data.augment", "crop_flip"),
  (f"{NPZ} --config.data.path={{0}}/few.npz --config.data.normalize=image", "config.data.normalize", "imagenet"),
  ("--config.data.augment=crop_flip", "config.data.augment", "'digits'"),
  (f"{TEXT} {' '.join(TRANSFORMER)} --config.data.path={{0}}/empty.txt", "{0}/empty.txt"),
  (f"{TEXT} --config.data.path={{0}}/pipe", "{0}/pipe"),
  (f"{TEXT} --config.data.path=/dev/zero", "/dev/zero"),
  ("--config.data.name=tokens", "config.data.path must be set"),
  (f"{TOKENS}none --config.data.vocabulary=9", "{0}/none", "config.data.path must be an existing"),
  (f"{TOKENS}text.npz --config.data.vocabulary=9", "{0}/text.npz", "folder"),
  (f"{TOKENS}deep --config.data.vocabulary=9", "{0}/deep/train.bin"),
  (f"{TOKENS}odd", "{0}/odd/train.bin", "101 bytes", "multiple of 2"),
  (f"{TOKENS}beyond", "{0}/beyond/val.bin", "got 50", "vocabulary of 50"),
  (f"{TOKENS}beyond --config.data.vocabulary=51 --config.data.length=60", "got 60", "length=59"),
  (f"{TOKENS}unknown", "{0}/unknown", "config.data.vocabulary"),
  (f"{TOKENS}unknown --config.data.vocabulary={HUGE}", "config.data.vocabulary", "65,536"),
  (f"{TOKENS}damaged", "{0}/damaged/meta.json", "int8", "uint16"),
  (f"{TOKENS}nested", "{0}/nested/meta.json", "JSON"),
  ("--config=", "--config=FILE"),
  ("--config={0}/no.py", "{0}/no.py", "configs/digits.py"),
  ("--config={0}", "{0}"),
  ("--config.compare.target=0.9", "config.compare.target"),
  ("--config.sweep.trials=3", "config.sweep.trials"),
  ("--config.barrier.name=ssp", "config.barrier.name", "sync_sgd"),
  ("--config.network.blocks=4", "config.network.blocks", "sync_sgd"),
]  # fmt: skip
WRITE = "--out={0}/run"
COMMANDS = [  # command, its arguments, and parts of the error message
  ("compare", f"{COMPARE} --config.seed=3", "config.seed", "config.compare.seeds"),
  ("compare", f"{COMPARE} --config.sweep.trials=3", "config.sweep.trials"),
  ("compare", f"{COMPARE} --config.algorithm.delay=2", "label 'sync SGD'", "config.algorithm.delay"),
  ("sweep", f"{COMPARE} --config.algorithm.delay=2", "label 'sync SGD'", "config.algorithm.delay"),
  (
    "train",
    f"{DIGITS} --config.algorithm.name=original_easgd --config.algorithm.alpha=1.01",
    "alpha must be in [0, 1], got 1.01.",
  ),
  (
    "train",
    f"{DIGITS} --config.algorithm.name=round_robin_easgd --config.algorithm.alpha=1.01",
    "alpha must be in [0, 1], got 1.01.",
  ),
  ("compare", f"{COMPARE} --config.algorithm.name=easgd", "config.compare.algorithms", "only=LABELS"),
  ("compare", f"{COMPARE} --config.network.service_seconds=1.0", "config.network.service_seconds", "sync_sgd", "easgd"),
  ("compare", f"{COMPARE} --config.compare.seeds={2**32},", "config.compare.seeds"),
  ("compare", f"{COMPARE} --tuned={{0}}/pipe", "tuned must", "{0}/pipe"),
  ("compare", f"{COMPARE} --tuned=/dev/zero", "tuned must", "/dev/zero"),
  ("compare", f"{COMPARE} --tuned={{0}}/trials.json", "tuned must", "{0}/trials.json"),
  ("compare", f"{COMPARE} --tuned={{0}}/deep/config.json", "{0}/deep/config.json"),
  ("sweep", f"{COMPARE} --config.compare.seeds=1,2", "config.compare.seeds"),
  ("sweep", f"{COMPARE} --config.times.seconds=1.0", "config.times.seconds", "sync_sgd"),
  ("sweep", f"{COMPARE} --trials={HUGE}", "trials"),
  ("plan", f"{COMPARE} --config.network.overlap=False", "config.network.overlap", "cluster"),
  ("plan", f"{' '.join(CLUSTER)} --json={{0}}/", "json must", "{0}/"),
  ("plan", f"{' '.join(CLUSTER)} --json={{0}}/none/x.json", "json must", "{0}/none/x.json"),
  ("scale", f"{' '.join(CLUSTER)} --workdir=gs://bucket/x", "gs://bucket/x"),
  ("scale", f"{' '.join(CLUSTER)} --nodes=1,2 --jitter=1e300", "jitter"),
  ("tokenize", "", "--text=FILE", "--out=FOLDER"),
  ("tokenize", f"{WRITE} --text={{0}}/none.txt", "{0}/none.txt"),
  ("tokenize", f"{WRITE} --text={{0}}/pipe", "{0}/pipe"),
  ("tokenize", f"{WRITE} --text={{0}}/empty.txt", "{0}/empty.txt", "got an empty file"),
  ("tokenize", f"{WRITE} --text={{0}}/trials.json --level=word", "level", "byte, bpe"),
  ("tokenize", f"{WRITE} --text={{0}}/trials.json --vocabulary=300", "vocabulary", "level=bpe"),
  ("tokenize", f"{WRITE} --text={{0}}/trials.json --validation=2", "validation must", "2"),
  ("tokenize", "--text={0}/trials.json --out={0}/odd", "{0}/odd", "train.bin"),
  ("tokenize", "--text={0}/trials.json --out={0}/empty.txt", "{0}/empty.txt"),
  ("tokenize", "--text={0}/trials.json --out=/proc/x", "/proc/x"),
]
ASYNC_SGD = "--config.algorithm.name=async_sgd --config.algorithm.period=None --config.optimizer.momentum=0"
HALOS = "--config.algorithm.name=halos --config.algorithm.alpha=None"
REAL_TIME = [  # arguments of an asynchronous `train`, and parts of the error message
  ("--runtime=threads --config.algorithm.name=sync_sgd --config.algorithm.period=None", "sync_sgd", "async_sgd"),
  ("--runtime=threads --resume", "resume", "runtime=threads", "runtime=ray"),
  (f"--runtime=threads {ASYNC_SGD} --config.barrier.name=backup --config.barrier.spare=1", "config.barrier.name",
   "got backup"),
  (f"--runtime=ray {ASYNC_SGD} --config.barrier.name=cutoff --config.barrier.window=2", "config.barrier.name",
   "got cutoff"),
  ("--runtime=threads --step_loop=scan", "step_loop", "runtime=simulator"),
  ("--runtime=threads --checkpoint_every=5", "checkpoint_every", "runtime=threads"),
  ("--runtime=ray --shards=100000", "shards", "got 100000", "610"),
  ("--config.times.name=trace --config.times.seconds=None --config.times.jitter=None --config.times.path=no.csv",
   "no.csv"),
  ("--config.barrier.name=backup --config.barrier.spare=1", "config.barrier.name=backup", "async_easgd"),
  (f"{HALOS} --config.barrier.name=backup --config.barrier.spare=1", "config.barrier.name", "got a quorum"),
  ("--config.times.seconds=-1", "seconds"),
  ("--config.times.slow=(1,2)", "slow"),
  ("--config.algorithm.alpha=1.0", "alpha"),
]  # fmt: skip
ASYNCHRONOUS = f"{ASYNC} --config.model.hidden=(8,) --config.workers=3 --config.times.slow=()"
COMMANDS += [("train", f"{ASYNCHRONOUS} {case[0]}", *case[1:]) for case in REAL_TIME]
CONFIGS = {  # a config file, or lines of get_config after c = base(): part of the error message
  "def get_config(:": "x.py, line 1",
  "x = 1": "get_config",
  "import no_such_module": "no_such_module",
  "def get_config():\n  return {}": "base()",
  "c.stepz = 3": '"steps"',
  "c.steps = 'x'": "steps",
  "c = ConfigDict({'a': 1})": "config.algorithm",
  "c.unlock(); del c.model": "config.model",
  "c.unlock(); del c.model.name": "config.model.name",
  "c.unlock(); c.stepz = 3": "stepz",
  "with c.ignore_type(): c.model = 3": "config.model",
  "with c.ignore_type(): c.workers = None": "config.workers",
  "with c.ignore_type(): c.workers = '8'": "config.workers",
  "with c.ignore_type(): c.optimizer.learning_rate = 'x'": "config.optimizer.learning_rate",
  "with c.ignore_type(): c.compare.algorithms = 3": "config.compare.algorithms",
  "c.compare.title = '\\udcff'": "config.compare.title",
  "raise SystemExit(3)": "x.py, line 5: SystemExit",
  "c.data.name = 'npz'; c.data.path = 'a\\0b'": "a\\x00b",
}


@pytest.fixture(scope="module")
def malformed(tmp_path_factory):
  """A folder with malformed data files, configs and token files."""
  tmp_path = tmp_path_factory.mktemp("malformed")
  labels, images = np.zeros(120, np.int32), np.zeros((5, 4, 4), np.uint8)
  np.savez(tmp_path / "names.npz", pictures=np.zeros(3))
  np.savez(tmp_path / "few.npz", image=images, label=np.zeros(4, np.int32))
  np.savez(tmp_path / "width.npz", image=np.zeros((120, 4, 0), np.uint8), label=labels)
  np.savez(tmp_path / "features.npz", image=np.zeros((120, 0), np.float32), label=labels)
  np.savez(tmp_path / "pickled.npz", image=np.array([{"a": 1}] * 120, object), label=labels)
  (tmp_path / "cut.npz").write_bytes((tmp_path / "few.npz").read_bytes()[:-30])
  (tmp_path / "text.npz").write_text("hello")
  (tmp_path / "empty.txt").write_text("")
  with zipfile.ZipFile(tmp_path / "bytes.npz", "w") as archive:
    archive.writestr("image", b"no .npy file")
    archive.writestr("label", b"no .npy file")
  (tmp_path / "deep").mkdir()
  for name in ("config.json", "about.json"):
    (tmp_path / "deep" / name).write_text("[" * 100_000 + "]" * 100_000)
  (tmp_path / "trials.json").write_text(json.dumps({"algorithms": {"EASGD": {"best": {}, "trials": 3}}}))
  for name in ("a", "b"):
    (tmp_path / "images" / name).mkdir(parents=True)
    (tmp_path / "images" / name / "x.png").write_text("no image")
  os.mkfifo(tmp_path / "pipe")
  few, many = np.arange(50), np.arange(60)
  write_tokens(tmp_path / "beyond", many % 50, many % 51, vocabulary=50)
  for name, meta in (
    ("unknown", None),
    ("odd", '{"vocabulary": 50}'),
    ("damaged", '{"dtype": "int8"}'),
    ("nested", "[" * 100_000),
  ):
    write_tokens(tmp_path / name, few, few)
    if meta:
      (tmp_path / name / "meta.json").write_text(meta)
  (tmp_path / "odd" / "train.bin").write_bytes(bytes([7, 0]) * 50 + b"\x07")
  return tmp_path


@pytest.mark.parametrize("case", [("train", *case) for case in FLAGS] + COMMANDS, ids=lambda case: " ".join(case[:2]))
def test_command(at_once, wrong, malformed, case):
  command, arguments, *words = case
  settings = [*(QUICK if case[1:] in FLAGS else ()), *arguments.split()]
  wrong(
    [argument.format(malformed) for argument in settings], *(word.format(malformed) for word in words), command=command
  )
  assert not (malformed / "run").exists()


@pytest.mark.parametrize("lines", CONFIGS)
def test_config_file(at_once, wrong, tmp_path, lines):
  if lines.startswith(("def ", "import ", "x = ")):
    text = lines
  else:
    imports = "from ml_collections import ConfigDict\nfrom ddl.config import base\n"
    text = f"{imports}def get_config():\n  c = base()\n  {lines}\n  return c\n"
  (tmp_path / "x.py").write_text(text)
  wrong([f"--config={tmp_path}/x.py"], CONFIGS[lines])
  assert not (tmp_path / "run").exists()
