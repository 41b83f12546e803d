"""ResNet-20 on CIFAR-10 through tensorflow-datasets, the setting of post-local SGD (Lin et al. 2018, arXiv 1808.07217).

The paper uses 16 workers, local batch 128, learning rate 0.1 per 64 examples with 5 epochs of warm-up, divided by 10 at
epochs 150 and 225 of 300, Nesterov momentum 0.9, weight decay 1e-4 except for batch norm, and 16 local steps from epoch
150. Images are cropped to 32 pixels after padding with 4, flipped, and normalized per channel. Requires GPUs. The data
set must be on disk; otherwise an error message explains how to prepare it.

  python run.py train --config=configs/cifar10_resnet20.py
"""

from ddl.config import base

STEPS_PER_EPOCH = 50_000 // (16 * 128)


def get_config():
  config = base()
  config.data.name = "tfds"
  config.data.dataset = "cifar10"
  config.data.augment = "crop_flip"
  config.data.normalize = "channels"
  config.model.name = "resnet20"
  config.algorithm.name = "post_local_sgd"
  config.algorithm.period = 16
  config.algorithm.start = 150 * STEPS_PER_EPOCH
  config.partition.name = "sharded"
  config.workers = 16
  config.batch = 128
  config.steps = 300 * STEPS_PER_EPOCH
  config.eval_every = STEPS_PER_EPOCH
  config.optimizer.learning_rate = 0.1 * 16 * 128 / 64
  config.optimizer.momentum = 0.9
  config.optimizer.nesterov = True
  config.optimizer.weight_decay = 1e-4
  config.schedule.name = "decay"
  config.schedule.at = (150 * STEPS_PER_EPOCH, 225 * STEPS_PER_EPOCH)
  config.schedule.warmup = 5 * STEPS_PER_EPOCH
  return config
