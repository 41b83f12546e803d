"""Build layer tables of networks by name from the operations and sizes in neural_networks.toml.

Residual networks (He et al. 2015, arXiv 1512.03385): as in torchvision, a bottleneck has its stride in the 3x3
convolution; in the paper it is in the first 1x1 convolution, with the same number of parameters. Convolutions have no
bias; batch normalization is a separate layer.

Transformers: blocks of attention and a feed-forward network on `tokens` tokens; an example is a sequence. A token costs
6 FLOP per parameter plus 12 layers * width * tokens for the scores (Kaplan et al. 2020, arXiv 2001.08361). Encoders,
encoder-decoders and mixtures of experts are variants. A mixture of experts sends all its parameters, and computes only
with those of the active experts.

A name can set other sizes: `llama_8b:length=4096`, or `transformer:layers=24,width=2048`, a GPT-2 of these sizes.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddl.errors import OptionError
from ddl.perf import units
from ddl.perf.layers import (
  Attention,
  Embedding,
  FullAttention,
  FusedAttention,
  Layer,
  Loss,
  Pointwise,
  Recurrent,
  Residual,
  Table,
  Tied,
)  # fmt: skip
from ddl.ranges import Range, check, integers

CONVOLUTIONAL, SEQUENCE = "convolutional", "sequence"  # tables of neural_networks.toml
CUSTOM, BASE, HEAD = "transformer", "gpt2_124m", 64  # `transformer:...` is BASE with heads of width HEAD
KEYS = ("layers", "width", "heads", "kv_heads", "hidden", "length", "targets", "vocabulary", "experts", "active")
RECURRENT = ("layers", "width", "length", "vocabulary")  # those of an LSTM
FIELDS = {"length": "tokens"}  # keys of `NAME:key=value,...` whose field has another name
MOST = {"layers": 1000, "experts": 1000}
MAPS = (64, 128, 256, 512)  # output maps of the 3x3 convolutions in each stage of a residual network


def names() -> list[str]:
  """Return the names of all layer tables."""
  return [name for kind in (CONVOLUTIONAL, SEQUENCE) for name in _read()[kind]]


def has(name: str) -> bool:
  """Return whether a name is that of a layer table, possibly with sizes after a colon."""
  base, colon, _ = name.partition(":")
  return base in names() or (bool(colon) and base == CUSTOM)


def title(name: str) -> str:
  """Return the title of a layer table, given its name without sizes."""
  if name in _read()[CONVOLUTIONAL]:
    return _read()[CONVOLUTIONAL][name]["title"]
  net, title = sizes(name), _entry(SEQUENCE, name)["title"]
  return title if net.patch else f"{title}, sequences of {net.tokens} tokens"


@cache
def table(name: str) -> Table:
  """Return the layers of a network. Raises OptionError for an unknown name or an invalid size."""
  if not has(name):
    units.choice("model", name, names(), f"`{CUSTOM}:layers=24,width=2048` sets the sizes of a transformer.")
  if name not in _read()[CONVOLUTIONAL]:
    net = sizes(name)
    return transformer(net) if net.heads else recurrent(net)
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


class SequenceSizes(NamedTuple):
  """The sizes of a transformer for next-token prediction, masked-token prediction or classification, or of an LSTM."""

  layers: int
  width: int
  heads: int  # 0: an LSTM, which has only layers, width, tokens and vocabulary
  tokens: int  # per sequence
  vocabulary: int  # or classes
  kv_heads: int = 0  # for grouped-query attention (arXiv 2305.13245); 0: one per head
  hidden: int = 0  # width of the feed-forward network; 0: 4 width
  gated: bool = False  # SwiGLU (arXiv 2002.05202): the feed-forward network has two input projections
  positions: int = 0  # learned position embeddings; 0: rotary or ALiBi
  bias: bool = True  # in dense layers and normalizations (LayerNorm); False: RMSNorm
  tied: bool = True  # the output layer shares the weights of the embedding
  fused: bool = True  # attention in one kernel
  predicted: int = 0  # tokens per sequence for which the output layer is computed; 0: all
  causal: bool = True  # each token attends only to those before it
  experts: int = 1  # feed-forward networks of a block
  active: int = 1  # of which this many process each token
  segments: int = 0  # above 0: BERT's segment embeddings, and its outputs for masked tokens and the next sentence
  patch: int = 0  # above 0: the tokens are square image patches with sides of this length, and a class token
  targets: int = 0  # above 0: tokens of a decoder, which attends to the encoder's `tokens`
  buckets: int = 0  # learned biases of relative positions, for each head


def sizes(name: str) -> SequenceSizes:
  """Return the sizes of a network from neural_networks.toml, with the changes in "NAME:key=value,...".

  The key `length` sets the number of tokens. `transformer` is GPT-2 with heads of width 64.

  Raises:
    OptionError: for a network without sizes, an unknown key, or a value out of range.
  """
  base, colon, text = name.partition(":")
  units.choice("model with sizes", base, [CUSTOM, *_read()[SEQUENCE]])
  custom = base == CUSTOM
  entry = _entry(SEQUENCE, BASE if custom else base)
  net = SequenceSizes(**{key: value for key, value in entry.items() if key in SequenceSizes._fields})
  return _resized(net, text, custom) if colon else net


def _resized(net: SequenceSizes, text: str, custom: bool) -> SequenceSizes:
  """Return the sizes with the changes in "key=value,...". custom: whether heads default to the width / HEAD."""
  defaults = _defaults(net, custom)
  values: dict[str, int] = {}
  for item in text.split(","):
    key, _, value = item.partition("=")
    if key not in defaults or key in values:
      known = ", ".join(f"{key}={default}" for key, default in defaults.items())
      raise OptionError(
        "model's sizes", f"KEY=VALUE pairs, each key at most once (keys and defaults: {known})", f"'{item}'"
      )
    check(f"model's {key}", int(value) if value.isdecimal() else value, integers(1, MOST.get(key, 2**24)))
    values[FIELDS.get(key, key)] = int(value)
  if custom and "heads" not in values:
    values["heads"] = max(1, values.get("width", net.width) // HEAD)
  tokens = values.get("tokens", net.tokens)
  values["positions"] = max(net.positions, tokens) if net.positions else 0
  if net.predicted > 1:
    values["predicted"] = max(1, net.predicted * tokens // net.tokens)
  net = net._replace(**values)
  for key, of, whole in (("heads", "width", net.width), ("kv_heads", "heads", net.heads)):
    if (part := getattr(net, key)) and whole % part:
      raise OptionError(f"model's {key}", f"a divisor of its {of} ({whole})", part)
  check("model's active", net.active, Range(1, net.experts, integer=True))
  return net


def _defaults(net: SequenceSizes, custom: bool) -> dict[str, Any]:
  """Return the keys that a network has, and their defaults."""
  values = {key: getattr(net, FIELDS.get(key, key)) for key in KEYS}
  if not net.heads:
    return {key: values[key] for key in RECURRENT}
  absent = {"length"} if net.patch else set()
  absent |= set() if net.targets else {"targets"}
  shown = {"heads": f"width/{HEAD}"} if custom else {}
  shown |= {"kv_heads": net.kv_heads or "heads", "hidden": net.hidden or "4*width"}
  return {key: shown.get(key, value) for key, value in values.items() if key not in absent}


def recurrent(net: SequenceSizes) -> Table:
  """Return the layers of an LSTM; those of layer i are named i/...

  The products with the inputs of all tokens are one product; those with the state are computed token by token.
  """
  tokens, width = (1, net.tokens), net.width

  def layer(kind: type[Layer], name: str, inputs: int, outputs: int, bias: bool = False) -> Layer:
    return kind(name, inputs, outputs, size_in=tokens, size_out=tokens, bias=bias)

  layers = [layer(Embedding, "embedding", net.vocabulary, width)]
  for i in range(net.layers):
    layers += [
      layer(Layer, f"{i}/input", width, 4 * width, bias=True),
      layer(Recurrent, f"{i}/state", width, 4 * width),
      layer(Pointwise, f"{i}/cell", 8 * width, width),
    ]
  output = layer(Layer, "output", width, net.vocabulary, bias=True)
  return (*layers, output, layer(Loss, "loss", net.vocabulary, net.vocabulary))


def transformer(net: SequenceSizes) -> Table:
  """Return the layers of a transformer in the order of the forward pass; those of block i are named i/..."""
  width, tokens = net.width, (1, net.tokens)
  head = width // net.heads
  queries, values = net.heads * head, (net.kv_heads or net.heads) * head
  hidden = net.hidden or 4 * width
  into = 2 * hidden if net.gated else hidden
  unmasked = FullAttention if net.fused else Attention
  masked = FusedAttention if net.fused else Attention

  def layer(kind: type[Layer], name: str, inputs: int, outputs: int, size: tuple[int, int], **more: Any) -> Layer:
    return kind(name, inputs, outputs, **{"size_in": size, "size_out": size, "bias": False} | more)

  def normalization(name: str, size: tuple[int, int] = tokens) -> Layer:
    return layer(Layer, name, width, width, size, groups=width, bias=net.bias)

  def product(name: str, inputs: int, outputs: int, size: tuple[int, int], **more: Any) -> Layer:
    return layer(Layer, name, inputs, outputs, size, **{"bias": net.bias} | more)

  def attention(kind: type[Layer], name: str, inputs: int, size: tuple[int, int], **more: Any) -> Layer:
    return layer(kind, name, inputs, queries, size, groups=net.heads, **more)

  def feed_forward(i: str, size: tuple[int, int]) -> list[Layer]:
    mixed: Any = {"experts": net.experts, "active": net.active}
    layers = [
      product(f"{i}/in", width, into, size, **mixed),
      layer(Pointwise, f"{i}/activation", into, hidden, size, active=net.active),
      product(f"{i}/out", hidden, width, size, **mixed),
    ]
    if net.experts == 1:
      return layers
    router = product(f"{i}/router", width, net.experts, size)
    return [router, *layers, layer(Residual, f"{i}/sum", net.active * width, width, size)]

  def block(i: str, size: tuple[int, int], kind: type[Layer], *, cross: bool = False) -> list[Layer]:
    layers = [
      normalization(f"{i}/norm1", size),
      product(f"{i}/qkv", width, queries + 2 * values, size),
      attention(kind, f"{i}/attention", queries + 2 * values, size),
      product(f"{i}/projection", queries, width, size),
      layer(Residual, f"{i}/add1", 2 * width, width, size),
    ]
    if cross:  # attention to the encoder's tokens
      layers += [
        normalization(f"{i}/cross_norm", size),
        product(f"{i}/cross_q", width, queries, size),
        product(f"{i}/cross_kv", width, 2 * values, tokens),
        attention(unmasked, f"{i}/cross_attention", 2 * values, size, size_in=tokens),
        product(f"{i}/cross_projection", queries, width, size),
        layer(Residual, f"{i}/cross_add", 2 * width, width, size),
      ]
    add = layer(Residual, f"{i}/add2", 2 * width, width, size)
    return [*layers, normalization(f"{i}/norm2", size), *feed_forward(i, size), add]

  def relative(name: str, size: tuple[int, int]) -> list[Layer]:
    return [layer(Embedding, name, net.buckets, net.heads, size)] if net.buckets else []

  if net.patch:  # patches do not overlap, so that the convolution is a product on each patch
    layers = [product("embedding", 3 * net.patch**2, width, (1, net.tokens - 1))]
  else:
    layers = [layer(Embedding, "embedding", net.vocabulary, width, tokens)]
  if net.positions:
    layers.append(layer(Embedding, "positions", net.positions, width, tokens))
  if net.segments:
    layers.append(layer(Embedding, "segments", net.segments, width, tokens))
  layers += relative("relative", tokens)
  last, kind = tokens, masked if net.causal and not net.targets else unmasked
  for i in range(net.layers):
    layers += block(str(i), tokens, kind)
  if net.targets:
    last = 1, net.targets
    layers += [normalization("encoder_norm"), *relative("decoder_relative", last)]
    for i in range(net.layers):
      layers += block(f"decoder_{i}", last, masked, cross=True)
  layers.append(normalization("norm", last))
  predicted = (1, net.predicted) if net.predicted else last
  if net.segments:
    layers += [
      product("transform", width, width, predicted),
      layer(Pointwise, "activation", width, width, predicted),
      normalization("transform_norm", predicted),
      Layer("pooler", width, width),
      Layer("next_sentence", width, 2),
    ]
  kind, bias = Tied if net.tied else Layer, bool(net.segments or net.patch)
  output = layer(kind, "output", width, net.vocabulary, predicted, bias=bias)
  return (*layers, output, layer(Loss, "loss", net.vocabulary, net.vocabulary, predicted))
