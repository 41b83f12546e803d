"""The models by name. A new one is a file beside this one, or among those for images, and a line here."""

from collections.abc import Callable

from ddl.api import Model
from ddl.models.gpt2 import gpt2
from ddl.models.linear import linear
from ddl.models.mlp import cd_dnn, mlp
from ddl.models.transformer import transformer
from ddl.models.vision.alexnet import alexnet, overfeat_fast
from ddl.models.vision.googlenet import googlenet
from ddl.models.vision.lenet import lenet
from ddl.models.vision.resnet import resnet18, resnet50
from ddl.models.vision.resnet20 import resnet20
from ddl.models.vision.vgg import vgg16, vgg19, vgg_a

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
