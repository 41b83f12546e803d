"""Published training steps of convolutional networks on one device, in milliseconds or images per second."""

from ddl.perf.devices.points import Point

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


def points() -> list[Point]:
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
