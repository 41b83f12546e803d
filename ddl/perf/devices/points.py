"""Published steps on single devices: where they are from, and which the shares are fitted on."""

from typing import NamedTuple


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
