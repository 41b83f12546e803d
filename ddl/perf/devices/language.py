"""Published training steps of transformers, in tokens per second and device; up to 64 devices share the states."""

from ddl.perf.devices.points import Point

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
OTHERS = (
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


def points() -> list[Point]:
  """All of them."""
  found = []
  for device, rows in (("h100", H100), ("a100_80gb", A100_80), ("a100_40gb", A100_40)):
    for model, tokens, sequences, again, rate, devices in rows:
      name, took = f"mpt_{model} {tokens}", sequences * tokens / rate
      found.append(Point(device, "bfloat16", name, sequences, took, "mosaic", devices, float(again)))
  for device, network, sequences, again, rate, devices, source in OTHERS:
    took = sequences * int(network.split()[1]) / rate
    found.append(Point(device, "bfloat16", network, sequences, took, source, devices, float(again)))
  for device, form, tokens, sequences, rate in BERT:
    found.append(Point(device, form, f"bert_large {tokens}", sequences, sequences / rate, "nv_bert"))
  return found
