"""The configs for CIFAR-10 and ImageNet: a few steps on small images, and the full network by its shapes."""

import jax
import numpy as np
import pytest
from helpers.commands import ROOT
from helpers.image_folders import write_folder

from ddl.config.base import load as load_config
from ddl.models import MODELS

CONFIGS = {
  "cifar10_resnet20": (8, ("--config.model.width=2", "--config.model.blocks=1")),
  "imagenet_resnet50": (32, ("--config.model.width=2", "--config.data.test_split=None")),
}
SHORT = (
  "--config.data.name=image_folder", "--config.data.dataset=None", "--config.workers=2", "--config.batch=2",
  "--config.steps=4", "--config.eval_every=2", "--config.schedule.warmup=1", "--config.schedule.at=(2,)", "--devices=1",
)  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.slow
def test_configs_train_a_few_steps(name, call, tmp_path):
  size, more = CONFIGS[name]
  for part in ("train", "val"):
    write_folder(tmp_path / "images" / part, ("ant", "bee"), 6, (size + 3, size + 8))
  if "cifar" in name:
    more = (*more, "--config.algorithm.start=2", "--config.algorithm.period=2")
  path = (f"--config={ROOT}/configs/{name}.py", f"--config.data.path={tmp_path}/images", f"--config.data.size={size}")
  code, _, error = call("train", *path, *SHORT, *more)
  assert code == 0, error


def test_imagenet_config_has_the_published_resnet50():
  config = load_config(ROOT / "configs" / "imagenet_resnet50.py")
  meta = {"task": "classification", "shape": (config.data.size, config.data.size, 3), "num_outputs": 1000}
  params, _ = jax.eval_shape(MODELS[config.model.name](meta).init, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(params)) == 25_557_032


def test_top5_accuracy_is_reported_from_100_classes():
  rng = np.random.default_rng(0)
  x, y = rng.standard_normal((200, 7)).astype(np.float32), rng.integers(0, 99, 200)
  for classes in (99, 100):
    model = MODELS["linear"]({"task": "classification", "shape": (7,), "num_outputs": classes})
    params, extra = jax.eval_shape(model.init, jax.random.key(0))
    metrics = jax.eval_shape(model.metrics, params, extra, {"x": x, "y": y})
    assert ("accuracy_top5" in metrics) == (classes == 100)
  params = jax.tree.map(lambda x: np.asarray(rng.standard_normal(x.shape), x.dtype), params)
  metrics = jax.jit(model.metrics)(params, extra, {"x": x, "y": y})

  @jax.jit
  @jax.vmap
  def loss_of(label):
    return model.metrics(params, extra, {"x": x, "y": np.zeros_like(y) + label})["loss"]

  rank = (loss_of(np.arange(100)) < metrics["loss"][None]).sum(axis=0)  # number of more likely classes
  np.testing.assert_array_equal(metrics["accuracy_top5"], rank < 5)
  assert 0 < (rank < 5).sum() < 200
