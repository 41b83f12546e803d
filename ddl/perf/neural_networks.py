"""Build layer tables of networks by name from the operations and sizes in neural_networks.toml.

Residual networks (He et al. 2015, arXiv 1512.03385): as in torchvision, a bottleneck has its stride in the 3x3
convolution; in the paper it is in the first 1x1 convolution, with the same number of parameters. Convolutions have no
bias; batch normalization is a separate layer.

Transformers: blocks of attention and a feed-forward network on `tokens` tokens; an example is a sequence. A token costs
6 FLOP per parameter plus 12 layers * width * tokens for the scores (Kaplan et al. 2020, arXiv 2001.08361).
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddl.perf import units
from ddl.perf.layers import Attention, Embedding, FusedAttention, Layer, Loss, Pointwise, Residual, Table, Tied

CONVOLUTIONAL, TRANSFORMER = "convolutional", "transformer"  # tables of neural_networks.toml
MAPS = (64, 128, 256, 512)  # output maps of the 3x3 convolutions in each stage of a residual network


def names() -> list[str]:
  """Return the names of all layer tables."""
  return [*_read()[CONVOLUTIONAL], *_read()[TRANSFORMER]]


def title(name: str) -> str:
  """Return the title of a layer table."""
  if name in _read()[CONVOLUTIONAL]:
    return _read()[CONVOLUTIONAL][name]["title"]
  return f"{_entry(TRANSFORMER, name)['title']}, sequences of {transformer_sizes(name).tokens} tokens"


@cache
def table(name: str) -> Table:
  """Return the layers of a network. Raises OptionError for an unknown name."""
  units.choice("model", name, names())
  if name in _read()[TRANSFORMER]:
    return transformer(transformer_sizes(name))
  entry = _entry(CONVOLUTIONAL, name)
  if "blocks" in entry:
    return residual(entry["blocks"], 4 if entry.get("bottleneck") else 1)
  auxiliary = entry.get("auxiliary", False)
  operations = [x for x in entry["layers"] if auxiliary or not isinstance(x, dict)]
  size, maps = entry["input"]
  return tuple(sequence(size, maps, operations, normalized=entry.get("normalized", False))[0])


@cache
def _read() -> dict[str, dict[str, dict[str, Any]]]:
  return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _entry(kind: str, name: str) -> dict[str, Any]:
  """Return the keys of a network, including those inherited from the network named by `like`."""
  entry = _read()[kind][name]
  return (_entry(kind, entry["like"]) if "like" in entry else {}) | entry


def sequence(
  size: int, maps: int, operations: Sequence[Any], *, normalized: bool = False, prefix: str = ""
) -> tuple[list[Layer], int, int]:
  """Return (layers with weights, output size, output maps) of operations on `maps` maps of size x size.

  Args:
    size: height and width of the input.
    maps: number of maps of the input.
    operations: see neural_networks.toml.
    normalized: whether batch normalization follows each convolution; its shift counts as the bias.
    prefix: prefix of the layers' names.
  """
  layers: list[Layer] = []
  for operation in operations:
    if isinstance(operation, dict):  # an auxiliary classifier, whose output is not used by other layers
      layers += sequence(size, maps, operation["auxiliary"], normalized=normalized, prefix=prefix)[0]
    elif isinstance(operation, list):
      inside = f"{prefix}{operation[0]}/" if operation[0] else prefix
      branches = [sequence(size, maps, branch, normalized=normalized, prefix=inside) for branch in operation[1:]]
      layers += [layer for branch in branches for layer in branch[0]]
      size, maps = branches[0][1], sum(branch[2] for branch in branches)
    else:
      name, *words = operation.split()
      if name == "pool":
        kernel, _, stride = words[0].partition("/")
        size = _size_out(size, int(kernel), int(stride), "same" in words)
      elif words[-1] == "dense":
        layers.append(Layer(prefix + name, maps * size * size, int(words[0])))
        size, maps = 1, int(words[0])
      else:
        kernel, _, stride = words[1].partition("/")
        sides = tuple(map(int, kernel.split("x")))
        same = "valid" not in words
        layer = convolution(prefix + name, maps, int(words[0]), size, sides, int(stride or 1), same=same)
        layers.append(layer._replace(normalized=normalized))
        size, maps = layer.size_out[0], layer.outputs
  return layers, size, maps


def _size_out(size: int, kernel: int, stride: int, same: bool) -> int:
  return (size + 2 * (kernel // 2 if same else 0) - kernel) // stride + 1


def convolution(
  name: str, inputs: int, outputs: int, size: int, kernel: Sequence[int], stride: int = 1, *, same: bool = True,
  bias: bool = True,
) -> Layer:  # fmt: skip
  """Return a convolution of maps of size x size.

  Args:
    name: name of the layer.
    inputs: number of input maps.
    outputs: number of output maps.
    size: height and width of the input.
    kernel: (kh, kw), or (k,) for both.
    same: whether the input is padded so that a stride of 1 preserves the size.
    bias: whether the layer has a bias.
  """
  sides = kernel[0], kernel[-1]
  out = _size_out(size, sides[0], stride, same), _size_out(size, sides[1], stride, same)
  if min(out) < 1:
    raise ValueError(f"{name}: a {sides[0]}x{sides[1]} kernel does not fit into a map of {size}x{size}.")
  return Layer(name, inputs, outputs, sides, (size, size), out, bias=bias)


def residual(blocks: Sequence[int], wider: int) -> Table:
  """Return a residual network for 224x224 images.

  Args:
    blocks: number of blocks in each stage.
    wider: ratio of a block's output maps to those inside it: 4 for bottlenecks, 1 for blocks of two 3x3 convolutions.
  """
  layers: list[Layer] = []

  def add(name: str, inputs: int, outputs: int, size: int, kernel: int, stride: int = 1) -> None:
    layer = convolution(name, inputs, outputs, size, (kernel,), stride, bias=False)
    scale = Layer(f"{name}/norm", outputs, outputs, (1, 1), layer.size_out, layer.size_out, groups=outputs)
    layers.extend([layer, scale])

  add("conv1", 3, 64, 224, 7, 2)
  inputs, size = 64, 56
  for stage, (count, maps) in enumerate(zip(blocks, MAPS, strict=True), 2):
    for block in range(count):
      stride, name = 2 if stage > 2 and block == 0 else 1, f"{stage}.{block}"
      if wider == 1:
        add(f"{name}/3x3", inputs, maps, size, 3, stride)
        add(f"{name}/3x3.1", maps, maps, size // stride, 3)
      else:
        add(f"{name}/1x1", inputs, maps, size, 1)
        add(f"{name}/3x3", maps, maps, size, 3, stride)
        add(f"{name}/1x1x4", maps, wider * maps, size // stride, 1)
      if inputs != wider * maps:
        add(f"{name}/shortcut", inputs, wider * maps, size, 1, stride)
      inputs, size = wider * maps, size // stride
  return (*layers, Layer("classifier", inputs, 1000))


class TransformerSizes(NamedTuple):
  """The sizes of a transformer for next-token or masked-token prediction."""

  layers: int
  width: int
  heads: int
  tokens: int  # per sequence
  vocabulary: int
  kv_heads: int = 0  # for grouped-query attention (arXiv 2305.13245); 0: one per head
  hidden: int = 0  # width of the feed-forward network; 0: 4 width
  gated: bool = False  # SwiGLU (arXiv 2002.05202): the feed-forward network has two input projections
  positions: int = 0  # learned position embeddings; 0: rotary or ALiBi
  bias: bool = True  # in dense layers and normalizations (LayerNorm); False: RMSNorm
  tied: bool = True  # the output layer shares the weights of the embedding
  fused: bool = True  # attention in one kernel
  predicted: int = 0  # tokens per sequence for which the output layer is computed; 0: all


def transformer_sizes(name: str) -> TransformerSizes:
  """Return the sizes of a transformer in neural_networks.toml."""
  entry = _entry(TRANSFORMER, name)
  return TransformerSizes(**{key: entry[key] for key in TransformerSizes._fields if key in entry})


def transformer(net: TransformerSizes) -> Table:
  """Return the layers of a transformer in the order of the forward pass; those of block i are named i/..."""
  width, tokens = net.width, (1, net.tokens)
  head = width // net.heads
  queries, values = net.heads * head, (net.kv_heads or net.heads) * head
  hidden = net.hidden or 4 * width
  into = 2 * hidden if net.gated else hidden
  attention = FusedAttention if net.fused else Attention

  def normalization(name: str) -> Layer:
    return Layer(name, width, width, size_in=tokens, size_out=tokens, groups=width, bias=net.bias)

  def product(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, inputs, outputs, size_in=tokens, size_out=tokens, bias=net.bias)

  def other(kind: type[Layer], name: str, inputs: int, outputs: int, tokens: tuple[int, int] = tokens) -> Layer:
    return kind(name, inputs, outputs, size_in=tokens, size_out=tokens, bias=False)

  layers = [other(Embedding, "embedding", net.vocabulary, width)]
  if net.positions:
    layers.append(other(Embedding, "positions", net.positions, width))
  for i in range(net.layers):
    layers += [
      normalization(f"{i}/norm1"),
      product(f"{i}/qkv", width, queries + 2 * values),
      other(attention, f"{i}/attention", queries + 2 * values, queries)._replace(groups=net.heads),
      product(f"{i}/projection", queries, width),
      other(Residual, f"{i}/add1", 2 * width, width),
      normalization(f"{i}/norm2"),
      product(f"{i}/in", width, into),
      other(Pointwise, f"{i}/activation", into, hidden),
      product(f"{i}/out", hidden, width),
      other(Residual, f"{i}/add2", 2 * width, width),
    ]
  predicted = (1, net.predicted or net.tokens)
  return (
    *layers,
    normalization("norm"),
    other(Tied if net.tied else Layer, "output", width, net.vocabulary, predicted),
    other(Loss, "loss", net.vocabulary, net.vocabulary, predicted),
  )
