"""The models by name. A new one is a file beside this one and a line here."""

from collections.abc import Callable

from ddl.api import Model
from ddl.models.lenet import lenet
from ddl.models.linear import linear
from ddl.models.mlp import mlp
from ddl.models.resnet20 import resnet20
from ddl.models.transformer import transformer

MODELS: dict[str, Callable[..., Model]] = {
  "linear": linear,
  "mlp": mlp,
  "lenet": lenet,
  "resnet20": resnet20,
  "transformer": transformer,
}
