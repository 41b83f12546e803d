r"""ResNet-50 on ImageNet with large batches (Goyal et al. 2017, arXiv 1706.02677), through tensorflow-datasets.

The paper uses k workers with 32 images each, learning rate 0.1 per 256 images with 5 epochs of warm-up, divided by 10
at epochs 30, 60 and 80 of 90, Nesterov momentum 0.9, weight decay 1e-4 except for batch norm, zero initialization of
the last batch norm scale in each block, random-resized crops of 224 pixels, and flips. If you change config.workers or
config.batch, scale config.optimizer.learning_rate and the steps accordingly (linear scaling). The paper's warm-up
starts at the learning rate of one worker; here it starts at 0. Requires GPUs. The second command reads an image folder.

  python run.py train --config=configs/imagenet_resnet50.py
  python run.py train --config=configs/imagenet_resnet50.py --config.data.name=image_folder \
    --config.data.path=imagenet/ --config.data.dataset=None --config.data.test_split=None
"""

from ddl.config import base

WORKERS, BATCH = 8, 32
STEPS_PER_EPOCH = 1_281_167 // (WORKERS * BATCH)


def get_config():
  config = base()
  config.data.name = "tfds"
  config.data.dataset = "imagenet2012"
  config.data.test_split = "validation"
  config.data.size = 224
  config.data.augment = "resized_crop"
  config.data.normalize = "imagenet"
  config.model.name = "resnet50"
  config.algorithm.name = "sync_sgd"
  config.partition.name = "sharded"
  config.workers = WORKERS
  config.batch = BATCH
  config.steps = 90 * STEPS_PER_EPOCH
  config.eval_every = STEPS_PER_EPOCH
  config.optimizer.learning_rate = 0.1 * WORKERS * BATCH / 256
  config.optimizer.momentum = 0.9
  config.optimizer.nesterov = True
  config.optimizer.weight_decay = 1e-4
  config.schedule.name = "decay"
  config.schedule.at = tuple(epoch * STEPS_PER_EPOCH for epoch in (30, 60, 80))
  config.schedule.warmup = 5 * STEPS_PER_EPOCH
  return config
