"""Published times of NCCL's all-reduce by message size (nccl-tests), and a cost model fitted to nine of these curves.

  python run.py reproduce

The other curves test the model. The split into fitted and held-out curves is by system: no cluster has curves in both
sets. Six held-out curves were looked up after the fit, and are marked as such. Curves with a forced protocol or
algorithm, with a reported fault, or between devices that are connected only through the host are excluded. Times are
in-place, because out-of-place times include connection setup. Expected: a median error under 15 % on held-out curves.
Takes a second.
"""

import ml_collections

KB, MB, GB = 2**10, 2**20, 2**30
SIZES = (KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB, GB)  # bytes
NVLINK = {"V100": 150e9, "A100": 300e9, "H100": 450e9, "B200": 900e9}  # bytes per second one way, NVIDIA's data sheets
EFA, EFA2, TCPX = 79e-6, 27e-6, 58e-6  # fitted latencies (s) of AWS p4d, AWS p5 and GCE A3 mega
INFINIBAND = 2.7e-6  # latency (s), also of RoCE; from ddl.perf.cluster
ISSUE = "NVIDIA/nccl-tests, issue 309"
DSTACK, OKE = "dstackai/dstack, docs, examples of clusters", "oracle-quickstart/oci-hpc-oke, README.md"


def get_config():
  config = ml_collections.ConfigDict()
  config.sizes = SIZES
  config.constants = 18  # fitted constants in ddl.perf.cluster.NCCL; values of 0 and 1 are not fitted
  rows = {
    "12 V100, DGX-2": one("V100", "log of host seville (Tesla V100-SXM3)", 12, True, fitted=True, us=(
      60.42, 62.83, 61.31, 65.13, 68.60, 88.14, 184.0, 487.1, 1052, 4036.7, 15989)),
    "8 A100, Azure": one("A100", "microsoft/superbenchmark, tests of cuda_nccl_bw", 8, True, fitted=True, us=(
      35.77, 36.11, 35.87, 37.25, 47.94, 76.17, 110.2, 225, 581.9, 2111.8, 8176.5)),
    "2 A100 with a bridge, Azure": one("A100", "nccl-tests on NC48ads_A100_v4, host nc48v4-pg0-1", 2, fitted=True, us=(
      8.87, 9.21, 10.86, 11.53, 13.74, 32.99, 49.5, 115.9, 374.1, 1394.1, 5206)),
    "16 A100, Azure": many("A100", "HPC on Azure Machine Learning, two ND96asr_v4", 2, 200e9, fitted=True, us=(
      39.85, 46.14, 57.07, 56.58, 67.47, 96.62, 147.4, 331.1, 938.9, 3000.5, 11095)),
    "16 H100, Dell": many("H100", ISSUE, 2, 400e9, fitted=True, us=(
      26.65, 29.72, 32.24, 33.08, 46.79, 71.47, 94.22, 183.8, 466.3, 1276, 4470.2)),
    "32 H100, Dell": many("H100", ISSUE, 4, 400e9, fitted=True, us=(
      37.1, 41.42, 46.39, 47.6, 66.86, 82.21, 154, 258.3, 574.4, 1772.4, 5802.8)),
    "16 A100, AWS p4d": many("A100", "AWS Deep Learning AMI guide, NCCL 2.23.4", 2, 50e9, EFA, False, fitted=True, us=(
      179.3, 183.9, 202.3, 235.1, 247, 404.3, 914.8, 1272, 2445.8, 7346.7, 26420)),
    "16 H100, AWS p5": many("H100", "aws-ia/terraform-aws-eks-blueprints, patterns/nvidia-gpu-efa", 2, 400e9, EFA2,
      fitted=True, us=(78.52, 83.16, 94.82, 96.8, 102.2, 121.5, 162.4, 290.3, 591.6, 1503.1, 5274)),
    "16 H100, GCE A3 mega": many("H100", "lessizzmore/create-a3mega-ztan-fork, ztan-NCCL-test-result", 2, 200e9, TCPX,
      False, fitted=True, us=(123.1, 125.6, 137.6, 157.6, 163.9, 207.2, 356.6, 951.6, 1270.2, 2359.9, 6737.4)),
    "8 A100, OCI": one("A100", "OCI tutorial, host inst-ks8ls-comp", 8, True, us=(
      32.17, 32.2, 32.2, 34.2, 44.01, 77.73, 134.7, 241.4, 587.8, 2110.9, 8165.2)),
    "4 A100": one("A100", "guide of a university cluster, NCCL-tests 2.13.6, host gpu01", 4, True, us=(
      14.58, 15.19, 15.35, 20.99, 34.06, 63.08, 86.73, 187.8, 538.8, 0, 0)),
    "8 V100, cube mesh": one("V100", "notes on NCCL of 2019, host 9a417caaf03b", 8, True, us=(
      48.83, 48.97, 49.77, 52.64, 59.48, 88.45, 145.1, 325.7, 995, 0, 0)),
    "8 H100": one("H100", "notes on Kubernetes, image h100-nccl-test:v1", 8, True, us=(
      54.3, 55.49, 54.36, 56.19, 70.74, 83.39, 86.65, 131.06, 329.24, 0, 0)),
    "8 B200, Vultr": one("B200", "B200 / Vultr POC, cluster test summary, 2026", 8, us=(
      25.33, 25.88, 26.53, 27.82, 28.93, 30.23, 57.27, 105.53, 277.7, 711.14, 2594.4)),
    "16 B200, Vultr": many("B200", "B200 / Vultr POC, cluster test summary, 2026", 2, 400e9, us=(
      37.62, 39.34, 41.45, 43.1, 65.58, 93.02, 111.68, 188.98, 343.17, 936.72, 3019.36)),
    "32 A100, DGX": many("A100", "NVIDIA/deepops, Slurm on four DGX A100", 4, 200e9, us=(
      0, 0, 0, 0, 0, 132.7, 226.9, 381.6, 1080.6, 3129.9, 11069)),
    "16 H100, second system": many("H100", ISSUE, 2, 400e9, us=(
      0, 0, 0, 0, 0, 82.98, 111.9, 202.7, 469.6, 1290.4, 4503.5)),
    "32 H100, second system": many("H100", ISSUE, 4, 400e9, us=(
      0, 0, 0, 0, 0, 93.26, 174.2, 286.3, 615.5, 2204.7, 6532.2)),
    "64 H100, second system": many("H100", ISSUE, 8, 400e9, us=(
      0, 0, 0, 0, 0, 115.7, 203.8, 373.5, 709.2, 2028.1, 7414.5)),
    "16 A100, AWS p4d, NCCL of 2021": many("A100", "aws-samples/aws-efa-eks, README.md", 2, 50e9, EFA, False,
      older=True, us=(182.3, 234.4, 253.9, 273.8, 305.5, 483.6, 817, 1900.9, 5566.4, 16853, 61303)),
    "16 H100, AWS p5, NCCL of 2023": many("H100", "aws-samples/awsome-distributed-training, nccl-tests", 2, 400e9,
      EFA2, older=True, us=(175.1, 174.7, 183.8, 194.8, 217.7, 245.5, 302.2, 564.3, 1001.7, 3020.7, 6426.1)),
    "16 H100, Nebius": many("H100", DSTACK, 2, 400e9, late=True, us=(
      31.29, 43.17, 34.55, 37.55, 63.33, 77.82, 114.66, 200.98, 480, 1303.37, 4513.82)),
    "16 A100, Crusoe": many("A100", DSTACK, 2, 200e9, late=True, us=(
      34.03, 35.3, 37.26, 50.97, 100, 88.58, 131.71, 265.91, 853.49, 2700.49, 10485.6)),
    "16 A100, OCI": many("A100", OKE, 2, 200e9, late=True, us=(
      40.56, 43.36, 48, 50.09, 65.81, 84.5, 127.8, 265.9, 812.7, 3065.9, 9073.4)),
    "8 A100": one("A100", "notes on nccl-tests, host thanos", 8, late=True, us=(
      23.63, 24.85, 25.67, 30.24, 26.18, 38.57, 94.98, 216.2, 614.8, 2217.6, 8252.7)),
    "8 A100, second system": one("A100", "notes on nccl-tests, host dkh", 8, True, late=True, us=(
      36.51, 36.85, 36.81, 37.55, 45.64, 65.27, 105.59, 271.67, 672.56, 0, 0)),
    "8 GB200, OCI": one("B200", OKE, 8, late=True, us=(
      26.93, 27.67, 28.13, 29.35, 30.18, 31.49, 52.39, 100.5, 264.6, 697.3, 2549.1)),
  }  # fmt: skip
  config.curves = ml_collections.ConfigDict(rows, sort_keys=False)
  return config.lock()


def one(device, source, workers, one_process=False, *, fitted=False, late=False, us):
  """Describe a curve that was measured inside one node.

  one_process: whether a single process drives all devices. us: microseconds for each size, 0 if unknown.
  """
  return {**many(device, source, 1, 0.0, fitted=fitted, late=late, us=us), "per_node": workers, "alone": one_process}


def many(
  device, source, nodes, between, latency=INFINIBAND, ordered=True, *, fitted=False, late=False, older=False, us
):
  """Describe a curve that was measured on nodes of eight devices, with one process per device.

  between: bytes per second of a node's links to other nodes, one way. ordered: whether 128 bytes arrive in order, which
  LL128 requires. late: whether the curve was looked up after the fit. older: whether the software is years older than
  that of the fitted curve on the same type of instance.
  """
  return {
    "per_node": 8, "nodes": nodes, "nvlink": NVLINK[device], "switch": device in ("H100", "B200"), "between": between,
    "latency": latency, "ordered": ordered, "alone": False, "fitted": fitted, "late": late, "older": older, "us": us,
    "source": source,
  }  # fmt: skip
