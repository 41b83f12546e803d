"""Kinds of models, by the products that take most of their time: a device's efficiency differs between them."""

from ddl.perf.devices.model import transformer
from ddl.perf.tables import TABLES

DENSE, CONVOLUTION, ATTENTION = "dense", "convolution", "attention"
PUBLISHED = {CONVOLUTION: "convolutions", ATTENTION: "transformer"}  # as `ddl.perf.devices.lookup` names them
KINDS: dict[str, str] = {
  **dict.fromkeys(("linear", "mlp"), DENSE),
  **dict.fromkeys(("lenet", "resnet18", "resnet20"), CONVOLUTION),
  **dict.fromkeys(("transformer", "gpt2"), ATTENTION),
}


def kind_of(model: str) -> str:
  """Return the kind of a model of `ddl.models` or of a layer table; "" for one that is neither."""
  if model in TABLES:
    if transformer(TABLES[model]):
      return ATTENTION
    layers = [layer for layer in TABLES[model] if hasattr(layer, "dense")]
    return DENSE if all(layer.dense for layer in layers) else CONVOLUTION
  return KINDS.get(model, "")


def published_kind(model: str) -> str:
  """Return the kind under which `ddl.perf.devices.lookup` has a model; "" where it has none."""
  return PUBLISHED.get(kind_of(model), "")
