"""Published training steps on single devices: their sources, and which of them the shares are fitted on."""

from functools import cache
from typing import NamedTuple

from ddl.perf.step.layers import Table
from ddl.perf.tables import TABLES, language, sequential
from ddl.perf.tables.language import Transformer, transformer


class Source(NamedTuple):
  """Of measurements."""

  text: str
  libraries: str  # "2016": cuDNN 5, normalization and activation apart; "2018": cuDNN 7 and newer


class Point(NamedTuple):
  """A measured training step."""

  device: str  # of SHEETS
  form: str  # format of the peak
  network: str  # a table's name, or "mpt_1b 2048", "bert_large 128" with the tokens of a sequence
  examples: int  # on the device
  seconds: float  # of a step
  source: str  # of SOURCES
  devices: int = 1  # that shared the parameters' states, and passed them on during the step
  recomputed: float = 0.0  # share of the forward pass that the backward pass computes again

  @property
  def what(self) -> str:
    """In words."""
    again = {0.0: "", 1.0: ", recomputed"}.get(self.recomputed, ", half recomputed")
    return f"{self.network}, {self.examples} a device{again}"


SOURCES = {
  "tf": Source("TensorFlow's benchmarks of May 2017 (cuDNN 5.1; synthetic data)", "2016"),
  "torch": Source("github.com/dmikushin/cnn-benchmarks (Torch, cuDNN 5.1, V100: 7.0; no update)", "2016"),
  "torch_5.0": Source("github.com/jcjohnson/cnn-benchmarks, first tables (Torch, cuDNN 5.0.05; no update)", "2016"),
  "mxnet_5": Source("MXNet's docs/how_to/perf.md of 2017 (cuDNN 5.1)", "2016"),
  "mxnet": Source("MXNet's docs/faq/perf.md (1.2, cuDNN 7.0.5)", "2018"),
  "lambda": Source("Lambda's blog of 4 March 2019 (tf_cnn_benchmarks, TensorFlow 1.12, cuDNN 7.4)", "2018"),
  "nv_mxnet": Source("NVIDIA DeepLearningExamples, MxNet RN50v1.5 (20.12)", "2018"),
  "nv_pytorch": Source("NVIDIA DeepLearningExamples, PyTorch resnet50v1.5 (21.03)", "2018"),
  "nv_bert": Source("NVIDIA DeepLearningExamples, PyTorch BERT (19.07)", "2018"),
  "mosaic": Source("MosaicML llm-foundry, scripts/train/benchmarking (fully sharded)", "2018"),
  "titan": Source("github.com/pytorch/torchtitan, docs/performance.md and benchmarks (fully sharded)", "2018"),
  "nanogpt": Source("github.com/karpathy/nanoGPT, issue 110 (8 A100, 5 microbatches of 12 each)", "2018"),
  "kempner": Source("KempnerForge, benchmarks (assumed: Llama 2 7B, 4 sequences)", "2018"),
}


# Milliseconds of 16 images, forward and backward.
TORCH = {
  "alexnet_groups": {"v100": 9.85, "p6000": 11.84, "gtx1080ti": 13.89, "p5000": 19.58, "gtx1080": 19.84, "m60": 35.32,
                     "m4000": 43.75, "k80": 47.61, "k520": 106.28},
  "googlenet": {"v100": 28.31, "gtx1080ti": 36.87, "p6000": 39.75, "gtx1080": 51.78, "p5000": 52.86, "m60": 93.08,
                "m4000": 129.77, "k80": 156.64, "k520": 313.15},
  "vgg16": {"v100": 76.45, "p6000": 122.04, "gtx1080ti": 128.14, "p5000": 180.30, "gtx1080": 183.42, "m60": 340.83,
            "m4000": 444.35, "k80": 449.40},
  "vgg19": {"v100": 87.97, "p6000": 142.56, "gtx1080ti": 148.19, "p5000": 207.47, "gtx1080": 210.16, "m60": 402.91,
            "m4000": 517.50, "k80": 527.69},
  "resnet18": {"v100": 20.32, "p6000": 31.58, "gtx1080ti": 32.78, "gtx1080": 43.83, "p5000": 44.06, "m60": 78.67,
               "m4000": 109.21, "k80": 112.74, "k520": 205.36},
  "resnet34": {"v100": 32.51, "gtx1080ti": 51.31, "p6000": 52.46, "gtx1080": 72.17, "p5000": 72.61, "m60": 130.88,
               "m4000": 177.22, "k80": 189.03, "k520": 343.06},
  "resnet50": {"v100": 66.09, "gtx1080ti": 101.21, "p6000": 102.78, "p5000": 147.49, "gtx1080": 148.65, "m60": 265.01,
               "m4000": 345.69, "k80": 398.81},
  "resnet101": {"v100": 113.75, "gtx1080ti": 154.26, "p6000": 156.78, "p5000": 223.88, "gtx1080": 224.34, "m60": 400.04,
                "m4000": 536.98, "k80": 685.52},
  "resnet152": {"v100": 162.37, "gtx1080ti": 215.54, "p6000": 218.85, "p5000": 311.13, "gtx1080": 314.30, "m60": 560.43,
                "m4000": 746.16, "k80": 983.83},
}  # fmt: skip
TORCH_50 = {
  "alexnet_groups": {"titan_x": 23.71, "k40c": 61.48},
  "vgg16": {"titan_x": 262.42, "k40c": 920.21},
  "vgg19": {"titan_x": 323.40, "k40c": 1129.65},
  "resnet18": {"titan_x": 53.84, "k40c": 168.30},
  "resnet34": {"titan_x": 91.94, "k40c": 303.80},
  "resnet50": {"titan_x": 171.02, "k40c": 449.90},
  "resnet101": {"titan_x": 260.12, "k40c": 797.89},
  "resnet152": {"titan_x": 366.97, "k40c": 1146.73},
}
# Images per second: device, network, images of a step, rate. Fewer than 16 images are left out: a step is then mostly
# the start of its kernels.
RATES = {
  "tf": (
    ("p100", "inception_v3", 64, 142), ("p100", "resnet50", 64, 219), ("p100", "resnet152", 64, 91.8),
    ("p100", "alexnet_v2", 512, 2987), ("p100", "vgg16", 64, 154), ("p100", "inception_v3", 32, 128),
    ("p100", "resnet50", 32, 195), ("p100", "resnet152", 32, 82.7), ("p100", "vgg16", 32, 144),
    ("k80", "inception_v3", 64, 30.5), ("k80", "resnet50", 64, 51.9), ("k80", "resnet152", 32, 20.0),
    ("k80", "alexnet_v2", 512, 656), ("k80", "vgg16", 32, 35.4), ("k80", "inception_v3", 32, 29.3),
    ("k80", "resnet50", 32, 49.5),
  ),
  "mxnet_5": (
    ("m40", "alexnet", 16, 606.32), ("m40", "alexnet", 32, 792.66), ("m40", "alexnet", 64, 1016.51),
    ("m40", "alexnet", 128, 1105.18), ("m40", "alexnet", 256, 1046.23), ("m40", "inception_v3", 16, 62.35),
    ("m40", "inception_v3", 32, 68.87), ("m40", "resnet50", 16, 83.13), ("m40", "resnet50", 32, 90.74),
    ("p100", "alexnet", 16, 1202.93), ("p100", "alexnet", 32, 1631.37), ("p100", "alexnet", 64, 1882.74),
    ("p100", "alexnet", 128, 2012.04), ("p100", "alexnet", 256, 1869.69), ("p100", "inception_v3", 16, 111.11),
    ("p100", "inception_v3", 32, 129.98), ("p100", "resnet50", 16, 156.79), ("p100", "resnet50", 32, 181.53),
  ),
  "mxnet": (
    ("k80", "alexnet", 16, 300.30), ("k80", "alexnet", 32, 406.08), ("k80", "alexnet", 64, 461.01),
    ("k80", "alexnet", 128, 484.00), ("k80", "alexnet", 256, 490.45), ("k80", "alexnet", 512, 414.72),
    ("k80", "inception_v3", 16, 31.62), ("k80", "inception_v3", 32, 33.78), ("k80", "resnet50", 16, 46.69),
    ("k80", "resnet50", 32, 49.48), ("m60", "alexnet", 16, 380.96), ("m60", "alexnet", 32, 530.53),
    ("m60", "alexnet", 64, 600.17), ("m60", "alexnet", 128, 633.60), ("m60", "alexnet", 256, 639.37),
    ("m60", "alexnet", 512, 576.54), ("m60", "inception_v3", 16, 46.88), ("m60", "inception_v3", 32, 50.05),
    ("m60", "resnet50", 16, 64.44), ("m60", "resnet50", 32, 68.34), ("v100", "alexnet", 16, 1629.52),
    ("v100", "alexnet", 32, 2359.73), ("v100", "alexnet", 64, 2687.89), ("v100", "alexnet", 128, 2919.02),
    ("v100", "alexnet", 256, 2994.32), ("v100", "alexnet", 512, 2585.61), ("v100", "alexnet", 1024, 1984.21),
    ("v100", "inception_v3", 16, 173.15), ("v100", "inception_v3", 32, 214.48), ("v100", "inception_v3", 64, 247.43),
    ("v100", "inception_v3", 128, 253.68), ("v100", "resnet50", 16, 251.22), ("v100", "resnet50", 32, 298.51),
    ("v100", "resnet50", 64, 343.19), ("v100", "resnet50", 128, 363.69),
  ),
  "lambda": (
    ("v100", "resnet50", 64, 405), ("v100", "resnet152", 32, 155), ("v100", "inception_v3", 64, 259),
    ("gtx1080ti", "resnet50", 64, 209), ("gtx1080ti", "resnet152", 32, 81), ("gtx1080ti", "inception_v3", 64, 136),
    ("titan_xp", "resnet50", 64, 236), ("titan_xp", "resnet152", 32, 90), ("titan_xp", "inception_v3", 64, 151),
    ("titan_v", "resnet50", 64, 300), ("titan_v", "resnet152", 32, 107), ("titan_v", "inception_v3", 64, 208),
    ("rtx2080ti", "resnet50", 64, 294), ("rtx2080ti", "resnet152", 32, 110), ("rtx2080ti", "inception_v3", 64, 194),
  ),
  "nv_mxnet": (("v100", "resnet50", 96, 384), ("v100", "resnet50", 128, 417)),
}  # fmt: skip
TENSOR_CORES = (  # device, format, images, rate, source
  ("v100", "bfloat16", 192, 1376, "nv_mxnet"), ("v100", "bfloat16", 256, 1492, "nv_mxnet"),
  ("v100", "bfloat16", 256, 1200, "nv_pytorch"), ("a100_80gb", "bfloat16", 256, 2180, "nv_mxnet"),
  ("a100_80gb", "bfloat16", 256, 2470, "nv_pytorch"), ("a100_80gb", "tf32", 256, 1022, "nv_mxnet"),
  ("a100_80gb", "tf32", 256, 938, "nv_pytorch"),
)  # fmt: skip


def convolutional_points() -> list[Point]:
  """All of them."""
  found = [
    Point(device, "float32", network, 16, took / 1e3, source)
    for source, table in (("torch", TORCH), ("torch_5.0", TORCH_50))
    for network, by_device in table.items()
    for device, took in by_device.items()
  ]
  for source, rows in RATES.items():
    found += [Point(device, "float32", net, images, images / rate, source) for device, net, images, rate in rows]
  for device, form, images, rate, source in TENSOR_CORES:
    found.append(Point(device, form, "resnet50", images, images / rate, source))
  return found


# MosaicML's table: model, tokens of a sequence, sequences of a microbatch, whether activations are recomputed, tokens
# per second and GPU, GPUs. Rows with recomputation where the model needs it, and one length of each where it does not.
H100 = (
  ("70b", 2048, 8, 1, 1039, 64), ("70b", 2048, 2, 1, 882, 32), ("30b", 8192, 1, 1, 1384, 8),
  ("30b", 4096, 1, 1, 1802, 8), ("30b", 2048, 14, 1, 2308, 32), ("30b", 2048, 3, 1, 2002, 8),
  ("30b", 1024, 6, 1, 2084, 8), ("13b", 4096, 10, 1, 4717, 8), ("13b", 2048, 2, 0, 4792, 8),
  ("13b", 1024, 40, 1, 5502, 8), ("7b", 65536, 1, 1, 1956, 8), ("7b", 32768, 2, 1, 3318, 8),
  ("7b", 8192, 8, 1, 6935, 8), ("7b", 4096, 16, 1, 8611, 8), ("7b", 2048, 6, 0, 10643, 8),
  ("7b", 1024, 64, 1, 10203, 8), ("3b", 16384, 1, 0, 11152, 8), ("3b", 8192, 3, 0, 16578, 8),
  ("3b", 4096, 5, 0, 20964, 8), ("3b", 2048, 10, 0, 24142, 16), ("3b", 1024, 20, 0, 27046, 8),
  ("3b", 512, 40, 0, 27965, 8), ("1b", 16384, 2, 0, 19649, 8), ("1b", 8192, 3, 0, 29157, 8),
  ("1b", 4096, 7, 0, 38535, 8), ("1b", 2048, 14, 0, 45455, 8), ("1b", 1024, 18, 0, 48910, 8),
  ("1b", 512, 56, 0, 52275, 8), ("760m", 8192, 6, 0, 41825, 8), ("760m", 4096, 12, 0, 55459, 8),
  ("760m", 2048, 24, 0, 63147, 8), ("760m", 1024, 48, 0, 78581, 8), ("760m", 512, 96, 0, 83749, 8),
)  # fmt: skip
A100_80 = (
  ("30b", 8192, 1, 1, 574, 8), ("30b", 2048, 3, 1, 916, 8), ("13b", 4096, 10, 1, 2060, 8),
  ("13b", 2048, 2, 0, 2262, 8), ("7b", 32768, 2, 1, 1672, 8), ("7b", 8192, 8, 1, 3206, 8),
  ("7b", 4096, 16, 1, 3684, 8), ("7b", 2048, 6, 0, 4641, 8), ("7b", 1024, 64, 1, 4357, 8),
  ("3b", 16384, 1, 0, 5529, 8), ("3b", 8192, 3, 0, 7695, 8), ("3b", 4096, 5, 0, 9457, 8),
  ("3b", 2048, 10, 0, 10811, 8), ("3b", 1024, 20, 0, 11580, 8), ("3b", 512, 40, 0, 12127, 8),
  ("1b", 16384, 2, 0, 9956, 8), ("1b", 8192, 3, 0, 13814, 8), ("1b", 4096, 7, 0, 17807, 8),
  ("1b", 2048, 14, 0, 20513, 8), ("1b", 1024, 18, 0, 22112, 8), ("1b", 512, 56, 0, 23148, 8),
  ("760m", 8192, 6, 0, 20933, 8), ("760m", 2048, 24, 0, 32434, 8), ("350m", 65536, 1, 0, 7524, 8),
  ("350m", 16384, 4, 0, 23559, 8), ("350m", 8192, 8, 0, 36569, 8), ("350m", 2048, 32, 0, 58782, 8),
  ("350m", 512, 128, 0, 69330, 8), ("125m", 65536, 1, 0, 20368, 8), ("125m", 16384, 4, 0, 60040, 8),
  ("125m", 8192, 8, 0, 90392, 8), ("125m", 4096, 16, 0, 118396, 8), ("125m", 2048, 32, 0, 141737, 8),
  ("125m", 1024, 64, 0, 156468, 8), ("125m", 512, 128, 0, 165681, 8),
)  # fmt: skip
A100_40 = (
  ("7b", 2048, 12, 1, 3679, 8), ("3b", 2048, 5, 0, 10065, 8), ("1b", 2048, 8, 0, 19271, 8),
  ("760m", 2048, 12, 0, 30173, 8), ("350m", 2048, 16, 0, 55995, 8), ("125m", 2048, 26, 0, 136334, 8),
  ("125m", 512, 104, 0, 156735, 8),
)  # fmt: skip
# Device, network, sequences, recomputed, tokens per second and device, devices, source. "Selective" recomputation of
# torchtitan stands as half of the forward pass.
LANGUAGE_OTHERS = (
  ("a100_80gb", "llama_8b 8192", 1, 0.5, 2973, 64, "titan"),
  ("a100_80gb", "llama3_70b 8192", 1, 1, 331, 64, "titan"),
  ("a100_80gb", "llama_13b 4096", 2, 0, 2162, 64, "titan"),
  ("a100_80gb", "llama_70b 4096", 2, 1, 353, 64, "titan"),
  ("h100_96gb", "llama_8b 8192", 2, 0.5, 5762, 8, "titan"),
  ("h200", "llama_7b 4096", 4, 1, 10471, 1, "kempner"),
  ("a100_40gb", "nanogpt 1024", 12, 0, 5 * 12 * 1024 / 0.5620, 8, "nanogpt"),
)
BERT = (  # device, format, tokens, sequences, sequences per second
  ("v100", "bfloat16", 128, 64, 171.52), ("v100", "bfloat16", 512, 8, 30.08), ("v100", "bfloat16", 128, 16, 125.44),
  ("v100", "bfloat16", 512, 4, 26.64), ("v100", "float32", 128, 32, 40.32), ("v100", "float32", 512, 4, 8.36),
  ("v100", "float32", 128, 8, 33.36), ("v100", "float32", 512, 2, 7.56),
)  # fmt: skip


def language_points() -> list[Point]:
  """All of them."""
  found = []
  for device, rows in (("h100", H100), ("a100_80gb", A100_80), ("a100_40gb", A100_40)):
    for model, tokens, sequences, again, rate, devices in rows:
      name, took = f"mpt_{model} {tokens}", sequences * tokens / rate
      found.append(Point(device, "bfloat16", name, sequences, took, "mosaic", devices, float(again)))
  for device, network, sequences, again, rate, devices, source in LANGUAGE_OTHERS:
    took = sequences * int(network.split()[1]) / rate
    found.append(Point(device, "bfloat16", network, sequences, took, source, devices, float(again)))
  for device, form, tokens, sequences, rate in BERT:
    found.append(Point(device, form, f"bert_large {tokens}", sequences, sequences / rate, "nv_bert"))
  return found


OTHERS = {
  "llama3_70b": Transformer(80, 8192, 64, 8192, 128_256, 8, 28_672, gated=True, bias=False, tied=False),
  "nanogpt": Transformer(12, 768, 12, 1024, 50_304, positions=1024, bias=False),
}


@cache
def network(name: str) -> Table:
  """The table of a point's network."""
  if name == "alexnet_groups":
    return sequential.alexnet_groups
  model, _, tokens = name.partition(" ")
  if not tokens:
    return TABLES[model]
  if model.startswith("mpt_"):
    return transformer(language.mpt(model.removeprefix("mpt_"), int(tokens)))
  if model == "bert_large":
    return transformer(language.bert_large(int(tokens)))
  net = OTHERS[model] if model in OTHERS else language.MODELS[model]
  return transformer(net.with_tokens(int(tokens)))
