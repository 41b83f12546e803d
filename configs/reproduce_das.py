"""Strong scaling of Das et al. 2016, arXiv 1602.06709: five speed-ups over one node, reported in its abstract.

  python run.py reproduce

Expected: with the paper's communication volumes at the full link rate, all speed-ups are overestimated by 8 to 74 %.
With both halves of an exchange (reduce-scatter and all-gather), measured link rates, and one core reserved for
messages, they are overestimated by 3 to 33 %. Takes a few seconds.
"""

import ml_collections

ABSTRACT_SILENT = "about 14x; network and mini-batch are not in the abstract: VGG-A and 256 are assumed"


def get_config():
  config = ml_collections.ConfigDict()
  config.fitted = "VGG-A, 64 nodes"  # the only fitted point
  config.share = 0.5  # share of peak FLOP/s reached with many examples: assumed
  config.shares = (0.25, 1.0)  # range of this share
  config.grown = "VGG-A, 128 nodes"  # the same number of examples per node on twice the nodes
  # All-reduces over FDR InfiniBand: (processors, bytes, seconds), Baidu's DeepBench, README.md (2016), TitanX GPUs.
  config.reduced = ((16, 4 * 16_777_216, 46.53e-3), (32, 4 * 16_777_216, 49.54e-3))
  config.larger = ((16, 4 * 64_500_000, 87.47e-3), (32, 4 * 64_500_000, 97.34e-3))
  config.framing = 1460 / 1538  # TCP payload over a full Ethernet frame, including preamble and gap
  config.kinds = {"cori_fdr": "fdr", "asr": "fdr", "aws_c4_8xlarge": "ethernet"}
  config.cores = {"cori_fdr": 32, "asr": 28, "aws_c4_8xlarge": 18}  # per node
  rows = {  # network of ddl.perf.neural_networks, cluster of ddl.perf; reported: times the speed of one node
    "VGG-A, 128 nodes": row("vgg_a", 512, 128, "cori_fdr", 90.0),
    "VGG-A, 64 nodes": row("vgg_a", 256, 64, "cori_fdr", 53.0),
    "OverFeat-FAST, 64 nodes": row("overfeat_fast", 256, 64, "cori_fdr", 42.0),
    "CD-DNN, 16 nodes": row(
      "cd_dnn", 1024, 16, "asr", 6.5, batches=(512, 1024, 2048), unknown="mini-batch and frame rate: 1024 is assumed"
    ),
    "AWS Ethernet, 16 nodes": row(
      "vgg_a", 256, 16, "aws_c4_8xlarge", 14.0, networks=("vgg_a", "overfeat_fast"), unknown=ABSTRACT_SILENT
    ),
  }
  config.rows = ml_collections.ConfigDict(rows, sort_keys=False)
  return config.lock()


def row(network, batch, nodes, cluster, reported, *, networks=(), batches=(), unknown=""):
  """Describe a reported speed-up.

  networks, batches: candidates if the paper does not report them. unknown: text on what it does not report.
  """
  return {
    "network": network,
    "batch": batch,  # examples on all nodes
    "nodes": nodes,
    "cluster": cluster,
    "reported": reported,
    "networks": networks or (network,),
    "batches": batches or (batch,),
    "unknown": unknown,
  }
