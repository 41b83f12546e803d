"""Layer tables of networks by name. A new one is an entry here, and its title."""

from ddl.perf.step.layers import Table
from ddl.perf.tables.alexnet import alexnet, alexnet_v2
from ddl.perf.tables.googlenet import googlenet, googlenet_aux
from ddl.perf.tables.inception import inception_v3
from ddl.perf.tables.overfeat import overfeat, overfeat_fast
from ddl.perf.tables.resnet import resnet50
from ddl.perf.tables.small import cd_dnn, lenet, nin
from ddl.perf.tables.vgg import vgg16, vgg19, vgg_a

TABLES: dict[str, Table] = {
  "lenet": lenet,
  "alexnet": alexnet,
  "alexnet_v2": alexnet_v2,
  "overfeat": overfeat,
  "overfeat_fast": overfeat_fast,
  "nin": nin,
  "vgg_a": vgg_a,
  "vgg16": vgg16,
  "vgg19": vgg19,
  "googlenet": googlenet,
  "googlenet_aux": googlenet_aux,
  "inception_v3": inception_v3,
  "resnet50": resnet50,
  "cd_dnn": cd_dnn,
}

TITLES: dict[str, str] = {
  "lenet": "LeNet for MNIST, as Caffe trains it",
  "alexnet": "AlexNet, without groups",
  "alexnet_v2": "AlexNet in one column (arXiv 1404.5997)",
  "overfeat": "OverFeat, fast model with 64 maps in conv1, as in TF-slim",
  "overfeat_fast": "OverFeat, fast model (arXiv 1312.6229)",
  "nin": "Network in Network (arXiv 1312.4400)",
  "vgg_a": "VGG, configuration A, 11 layers (arXiv 1409.1556)",
  "vgg16": "VGG, configuration D, 16 layers",
  "vgg19": "VGG, configuration E, 19 layers",
  "googlenet": "GoogLeNet (arXiv 1409.4842)",
  "googlenet_aux": "GoogLeNet with both auxiliary classifiers",
  "inception_v3": "Inception v3, without the auxiliary classifier (arXiv 1512.00567)",
  "resnet50": "ResNet-50 (arXiv 1512.03385)",
  "cd_dnn": "dense network for speech (arXiv 1602.06709)",
}


def named(name: str) -> Table:
  """The table.

  Raises:
    ValueError: for an unknown name, with all that are known.
  """
  if name not in TABLES:
    raise ValueError(f"no network named '{name}'; known are {', '.join(TABLES)}")
  return TABLES[name]
