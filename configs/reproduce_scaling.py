"""Published throughput of synchronous training on several devices, compared with predictions from the fewest devices.

  python run.py reproduce

Nothing is fitted: the throughput with the fewest devices is an input, and the costs of all-reduces are those of
reproduce_allreduce. Batches are per device; those of ResNet-50 with PyTorch are assumed, because they are not
published. Expected: a median error under 15 %. Takes a few seconds.
"""

import ml_collections

MB = 1e6
# Bytes per second, one way: NVLink of P100, V100, A100; a K80 in its host; nodes of DGX A100 and p2.8xlarge.
P100, V100, A100, K80, DGXA, EC2 = 80e9, 150e9, 300e9, 10e9, 200e9, 1.25e9
TF = "tensorflow.org, performance/benchmarks, 2017"
EXAMPLES = "NVIDIA/DeepLearningExamples"
BERT = 4 * 336 * MB  # bytes of gradients in float32, like the following
BART, RESNEXT, RESNET152 = 4 * 406 * MB, 4 * 44.2 * MB, 4 * 60.2 * MB
SERVERS = {"per_node": 8, "nvlink": K80, "between": EC2, "library": False}  # a parameter server on each node


def get_config():
  config = ml_collections.ConfigDict()
  config.bucket = 25e6  # bytes of gradients per message, as in PyTorch's DDP
  config.ethernet = 50e-6  # latency (s) between nodes on EC2: assumed
  config.rounds = 5  # fixed-point iterations for a base that itself has exchanges
  config.hard = 0.95  # points below this efficiency form the harder set
  config.pieces = 24  # equal layers for a network without a layer table
  rows = {
    "AlexNet, DGX-1": row(TF, "alexnet", 512, {1: 2987, 2: 5658, 4: 10509, 8: 17822}, P100),
    "VGG-16, DGX-1": row(TF, "vgg16", 64, {1: 132, 2: 259, 4: 511, 8: 959}, P100),
    "Inception-v3, EC2": row(TF, "inception_v3", 64, {1: 29.7, 8: 229, 16: 459, 32: 902, 64: 1783}, **SERVERS),
    "Inception-v3, EC2, batch 32": row(
      TF, "inception_v3", 32, {1: 29.2, 8: 219, 16: 427, 32: 820, 64: 1608}, **SERVERS),
    "ResNet-50, EC2": row(TF, "resnet50", 64, {1: 55, 8: 410, 16: 825, 32: 1468, 64: 3051}, **SERVERS),
    "ResNet-50, EC2, batch 32": row(TF, "resnet50", 32, {1: 53, 8: 363, 16: 719, 32: 1265, 64: 2623}, **SERVERS),
    "ResNet-152, EC2": row(TF, RESNET152, 32, {1: 19.8, 8: 150, 16: 300, 32: 575, 64: 1004}, **SERVERS),
    "ResNet-50, DGX A100, TF32": row(EXAMPLES, "resnet50", 256, {1: 938, 8: 7248}),
    "ResNet-50, DGX A100": row(EXAMPLES, "resnet50", 256, {1: 2470, 8: 16621}),
    "ResNet-50, DGX-1, FP32": row(EXAMPLES, "resnet50", 128, {1: 367, 8: 2855}, V100),
    "ResNet-50, DGX-1": row(EXAMPLES, "resnet50", 256, {1: 1200, 8: 8322}, V100),
    "ResNeXt-101, DGX A100, TF32": row(EXAMPLES, RESNEXT, 128, {1: 371, 8: 2854}),
    "ResNeXt-101, DGX A100": row(EXAMPLES, RESNEXT, 256, {1: 1132, 8: 8500}),
    "ResNet-50, OCI A100": row("OCI, Horovod", "resnet50", 32, {8: 4800, 16: 9171}),
    "BERT-large, DGX A100": row(EXAMPLES, BERT, 64, {8: 2871.89, 32: 11159, 128: 41144, 256: 77479.87}, each=(
      128, 32, 8, 4)),
    "BERT-large, DGX A100, TF32": row(EXAMPLES, BERT, 64, {8: 1889.71, 32: 7532, 128: 28605.62, 256: 53585.82}, each=(
      128, 32, 8, 4)),
    "BERT-large, DGX A100, 512 tokens": row(EXAMPLES, BERT, 16, {8: 572.112, 32: 2197.44, 128: 8723.1, 256: 16705},
      each=(256, 128, 32, 16)),
    "BERT-large, DGX A100, TF32, 512 tokens": row(
      EXAMPLES, BERT, 8, {8: 316.51, 32: 1268.43, 128: 4903.39, 256: 9463.8}, each=(512, 128, 32, 16)),
    "BART-large, DGX A100, TF32": row(EXAMPLES, BART, 100, {8: 1556.23, 160: 31067.96, 320: 61538.46}),
    "BART-large, DGX A100": row(EXAMPLES, BART, 200, {8: 2572.86, 160: 52459.02, 320: 97028.51}),
    "BART-large, DGX A100, TF32, 512 tokens": row(EXAMPLES, BART, 16, {8: 317.85, 160: 5953.49, 320: 11636.36}),
    "BART-large, DGX A100, 512 tokens": row(EXAMPLES, BART, 32, {8: 549.67, 160: 10520.54, 320: 19948.05}),
  }  # fmt: skip
  config.systems = ml_collections.ConfigDict({name.replace(".", ""): system for name, system in rows.items()})
  return config.lock()


def row(source, network, batch, rates, nvlink=A100, between=DGXA, per_node=8, library=True, each=()):
  """Describe a system, measured with several numbers of devices.

  network: the name of a layer table, or the bytes of the gradients. rates: number of devices -> examples per second,
  starting with the fewest devices. each: gradient accumulation steps per exchange, for each number of devices.
  """
  return {
    "network": network, "batch": batch, "devices": tuple(rates), "rates": tuple(map(float, rates.values())),
    "nvlink": nvlink, "between": between, "per_node": per_node, "library": library,
    "each": each or (1,) * len(rates), "source": source,
  }  # fmt: skip
