"""Runs with data augmentation: equal batches in every runtime, and bit-exact resume."""

import signal

import numpy as np
import pytest
from helpers.commands import metrics
from helpers.data_files import examples, write_npz
from helpers.sessions import at_call, send

from ddl.engine.checkpoint import Checkpoints

SERVER = ("--config=configs/async_easgd_digits.py", "--config.workers=3", "--config.times.slow=()")
COLLECTIVE = ("--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.algorithm.delay=3")


@pytest.fixture
def augmented(tmp_path):
  x, y = examples(240, (8, 6, 3))
  data = ("--config.data.name=npz", f"--config.data.path={write_npz(tmp_path, image=x, label=y)}")
  return (
    *data, "--config.data.augment=crop_flip", "--config.model.hidden=(8,)", "--config.batch=8", "--config.steps=24",
    "--config.eval_every=8",
  )  # fmt: skip


def outcome(folder):
  """The metrics and the bytes of the last checkpoint."""
  checkpoints = Checkpoints(folder / "checkpoints")
  carry = checkpoints._manager.restore(checkpoints.steps()[0]).carry
  checkpoints.close()
  return metrics(folder), [(name, np.asarray(x).tobytes()) for name, x in sorted(carry.items())]


@pytest.mark.parametrize("algorithm", [COLLECTIVE, SERVER], ids=["collective", "server"])
@pytest.mark.slow
def test_a_resume_has_the_same_bits(algorithm, augmented, call, tmp_path, monkeypatch):
  flags = ("train", *algorithm, *augmented, "--devices=1", "--steps_per_call=2")
  assert call(*flags, f"--workdir={tmp_path}/whole")[0] == 0
  with at_call(monkeypatch, 3, send(signal.SIGTERM)):
    assert call(*flags, f"--workdir={tmp_path}/part")[0] == 128 + signal.SIGTERM
  assert not (tmp_path / "part" / "result.json").exists()
  assert call(*flags, "--resume", f"--workdir={tmp_path}/part")[0] == 0
  assert outcome(tmp_path / "part") == outcome(tmp_path / "whole")


LAYOUT = ("--devices=3", "--virtual_grad=unroll")  # the layout of the threads


def losses(folder):
  return [line["test_loss"] for line in metrics(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["threads", "ray"])
def test_a_replay_has_the_same_augmented_examples(runtime, augmented, call, tmp_path):
  pytest.importorskip(runtime if runtime == "ray" else "jax")
  flags, replay = ("train", *SERVER, *augmented), f"--replay={tmp_path}/real/events.npz"
  assert call(*flags, f"--runtime={runtime}", f"--workdir={tmp_path}/real")[0] == 0
  assert call(*flags, replay, *LAYOUT, f"--workdir={tmp_path}/again")[0] == 0
  assert call(*flags, "--config.data.augment=none", replay, *LAYOUT, f"--workdir={tmp_path}/plain")[0] == 0
  real, again, plain = (losses(tmp_path / name) for name in ("real", "again", "plain"))
  np.testing.assert_allclose(real, again, rtol=0 if runtime == "threads" else 1e-6)
  assert not np.allclose(real[1:], plain[1:], rtol=1e-3)
