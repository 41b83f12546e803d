"""The registry of models. To add one, add a file to this folder and a line here.

A factory raises ValueError if the model does not accept the data or does not fit into memory.
"""

from collections.abc import Callable

from ddl.api import Model
from ddl.models.googlenet import googlenet
from ddl.models.mlp import cd_dnn, linear, mlp
from ddl.models.resnet import resnet18, resnet20, resnet50
from ddl.models.sequential import alexnet, lenet, overfeat_fast, vgg16, vgg19, vgg_a
from ddl.models.transformer import gpt2, transformer

MODELS: dict[str, Callable[..., Model]] = {
  "linear": linear,
  "mlp": mlp,
  "cd_dnn": cd_dnn,
  "lenet": lenet,
  "resnet20": resnet20,
  "alexnet": alexnet,
  "overfeat_fast": overfeat_fast,
  "vgg_a": vgg_a,
  "vgg16": vgg16,
  "vgg19": vgg19,
  "googlenet": googlenet,
  "resnet18": resnet18,
  "resnet50": resnet50,
  "transformer": transformer,
  "gpt2": gpt2,
}
