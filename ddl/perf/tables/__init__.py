"""Layer tables of networks by name. A new one is an entry here, and its title."""

from ddl.perf.step.layers import Table
from ddl.perf.tables import googlenet, inception, language, sequential
from ddl.perf.tables.language import transformer

TABLES: dict[str, Table] = {
  "lenet": sequential.lenet,
  "alexnet": sequential.alexnet,
  "alexnet_v2": sequential.alexnet_v2,
  "overfeat": sequential.overfeat,
  "overfeat_fast": sequential.overfeat_fast,
  "nin": sequential.nin,
  "vgg_a": sequential.vgg_a,
  "vgg16": sequential.vgg16,
  "vgg19": sequential.vgg19,
  "googlenet": googlenet.googlenet,
  "googlenet_aux": googlenet.googlenet_aux,
  "inception_v3": inception.inception_v3,
  "resnet18": sequential.resnet18,
  "resnet34": sequential.resnet34,
  "resnet50": sequential.resnet50,
  "resnet101": sequential.resnet101,
  "resnet152": sequential.resnet152,
  "cd_dnn": sequential.cd_dnn,
  **{name: transformer(net) for name, net in language.MODELS.items()},
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
  "resnet18": "ResNet-18 (arXiv 1512.03385)",
  "resnet34": "ResNet-34",
  "resnet50": "ResNet-50",
  "resnet101": "ResNet-101",
  "resnet152": "ResNet-152",
  "cd_dnn": "dense network for speech (arXiv 1602.06709)",
  **{name: f"{title}, sequences of {language.MODELS[name].tokens} tokens" for name, title in language.TITLES.items()},
}


def named(name: str) -> Table:
  """Return the table; ValueError, with all that are known, for an unknown name."""
  if name not in TABLES:
    raise ValueError(f"no network named '{name}'; known are {', '.join(TABLES)}")
  return TABLES[name]
