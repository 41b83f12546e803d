"""Cluster files: every key is read, and an invalid key is named."""

import os
from pathlib import Path

import pytest
from helpers.pages import ROOT, blocks

from ddl.perf import cluster_file
from ddl.perf.cluster import NCCL, LinkModel, NetworkModel, Torus, Uplink
from ddl.perf.device import Device, Efficiency, chips

TEXT = """
title = "Four hosts of two"
source = "a test"
overlap = false

[device]
format = "bfloat16"
peak = 100e12
memory_bandwidth = 1e12
memory = 24e9
efficiency = 0.4
half = 8
start = 1e-4
chip = "knl"

[nodes]
devices = 2
count = 4
card = 1e9
library = "NCCL"

[link.device]
latency = 1e-5
bandwidth = 12e9

[link.node]
latency = 3e-5
bandwidth = 1.25e9
duplex = 0.5

[link.host]
latency = 2e-5
bandwidth = 16e9
"""
NODE = "[link.node]\nlatency = 3e-5\nbandwidth = 1.25e9\nduplex = 0.5\n"


def written(tmp_path: Path, text: str) -> str:
  (tmp_path / "my.toml").write_text(text)
  return str(tmp_path / "my.toml")


def test_every_key_is_read(tmp_path):
  result = cluster_file.named(written(tmp_path, TEXT))
  assert (result.title, result.source, result.overlap, result.workers) == ("Four hosts of two", "a test", False, 8)
  assert result.device == Device(100e12, 1e12, 24e9, 1e-4, 2, "knl") and result.efficiency == Efficiency(0.4, 8)
  assert result.network == NetworkModel(LinkModel(3e-5, 1.25e9, 0.5), LinkModel(1e-5, 12e9), 2, card=1e9, library=NCCL)
  assert result.host == LinkModel(2e-5, 16e9)


def test_optional_keys_have_defaults(tmp_path):
  start, end = TEXT.index("[nodes]"), TEXT.index("[link.node]")
  short = TEXT[:start] + TEXT[end : TEXT.index("duplex")]
  for line in ("overlap = false\n", "half = 8\n", "start = 1e-4\n", 'chip = "knl"\n'):
    short = short.replace(line, "")
  cluster = cluster_file.read_cluster(written(tmp_path, short))
  assert cluster.overlap and cluster.workers is None and cluster.host is None
  assert cluster.efficiency.half == cluster.device.start == 0
  assert cluster.network == NetworkModel(LinkModel(3e-5, 1.25e9))
  one = TEXT.replace("count = 4", "count = 1").replace(
    "[link.node]\nlatency = 3e-5\nbandwidth = 1.25e9\nduplex = 0.5\n", ""
  )
  cluster = cluster_file.read_cluster(written(tmp_path, one))
  assert cluster.workers == 2 and cluster.network.main_link(2) == LinkModel(1e-5, 12e9)


@pytest.mark.parametrize("name", chips())
def test_a_chip_gives_the_figures_of_its_data_sheet(tmp_path, name):
  for form in chips()[name].peaks:
    text = f'title = "t"\nsource = "s"\n[device]\nformat = "{form.replace("tf32", "float32")}"\nchip = "{name}"\n'
    cluster = cluster_file.read_cluster(written(tmp_path, f"{text}\n[nodes]\ncount = 4\n{NODE}"))
    assert cluster.device == chips()[name].device(form)._replace(chip=name) and 0.28 < cluster.efficiency.best <= 1
    own = text + "peak = 2e12\nmemory = 5e9\nefficiency = 0.2\n[nodes]\n"
    other = cluster_file.read_cluster(written(tmp_path, own + NODE))
    assert other.device == cluster.device._replace(peak=2e12, memory=5e9) and other.efficiency.best == 0.2


def test_a_chip_without_a_peak_in_the_format_has_no_defaults(tmp_path):
  text = f'title = "t"\nsource = "s"\n[device]\nformat = "float32"\nchip = "tpu_v4"\n[nodes]\n{NODE}'
  with pytest.raises(ValueError, match=r"device\.peak must be a number .*, got nothing"):
    cluster_file.read_cluster(written(tmp_path, text))


NODE_BANDWIDTH = "link.node.bandwidth must be >= 1000 bytes per second, got "
MISTAKES = {  # (text of the file, its replacement): message
  (
    "peak = 100e12\n",
    "",
  ): r"my.toml: device.peak must be a number .FLOP per second in device.format, .*\), got nothing",
  ("peak =", "peek ="): r"key of \[device\] must be one of format, peak.* got 'peek'\. Did you mean 'peak'\?",
  ('source = "a test"\n', ""): "my.toml: source must be a text in quotes .where the figures are from.*got nothing",
  ("100e12", '"fast"'): "device.peak must be a number .FLOP per second.*got 'fast'",
  ("devices = 2", "devices = 2.5"): "nodes.devices must be an integer .devices per node., got 2.5",
  ("overlap = false", "overlap = 0"): "overlap must be true or false.*got 0",
  ("latency = 3e-5", "latency = true"): "link.node.latency must be a number.*got True",
  ("peak = 100e12", "peak = -1"): r"my.toml: device.peak must be >= 1e\+09 FLOP per second, got -1\.",
  ("efficiency = 0.4", "efficiency = 40"): r"device.efficiency must be in \[0\.0001, 1\], got 40\.",
  ("half = 8", "half = 1e300"): r"device.half must be in \[0, 1e\+06\] examples, got 1e\+300\.",
  ("memory = 24e9", "memory = 1e300"): r"device.memory must be in \[1000, 1e\+18\] bytes, got 1e\+300\.",
  ("start = 1e-4", "start = -1e-4"): r"device.start must be in \[0, 3600\] seconds, got -0\.0001\.",
  ("devices = 2\n", "devices = 0\n"): r"nodes.devices must be an integer in \[1, 1048576\], got 0\.",
  ("card = 1e9", "card = 1e-9"): "nodes.card must be .* or 0, got 1e-09",
  ("latency = 3e-5", "latency = nan"): r"link.node.latency must be in \[0, 3600\] seconds, got nan\.",
  ("duplex = 0.5", "duplex = 2"): r"link.node.duplex must be in \[0, 1\], got 2\.",
  ("bandwidth = 1.25e9", "bandwidth = 0"): NODE_BANDWIDTH + "0",
  ("bandwidth = 1.25e9", "bandwidth = 1e-300"): NODE_BANDWIDTH + "1e-300",
  ("bandwidth = 1.25e9", "bandwidth = inf"): "link.node.bandwidth must be .*, got inf",
  ("bandwidth = 1.25e9", f"bandwidth = 1{'0' * 400}"): "link.node.bandwidth must be .*, got 1000",
  ("bandwidth = 1.25e9", f"bandwidth = 1{'0' * 5000}"): "must be valid TOML",
  ("peak = 100e12", "peak = "): "must be valid TOML .* has an example",
  ("overlap = false", "overlap = false\noverlap = true"): "must be valid TOML",
  ("Four hosts of two", r"Four\nhosts"): "title must be one printable line, got 'Four",
  ('"NCCL"', '"ncl"'): "nodes.library must be one of .*nccl, .*got 'ncl'",
  ('"knl"', '"v99"'): "device.chip must be one of a10, .*got 'v99'",
  ("bfloat16", "bf16"): "device.format must be one of float32, bfloat16, float16, got 'bf16'",
  ("count = 4", "count = 1\nsites = 2"): "nodes.sites must be at most nodes.count .1., got 2",
  ("count = 4", "count = 1048576"): "nodes.count x nodes.devices must be at most 1048576, got 2097152",
  ("[link.device]\nlatency = 1e-5\nbandwidth = 12e9\n", ""): r"\[link.device\] must be set.* a node has 2 devices",
  (NODE, ""): r"\[link.node\] must be set .latency and bandwidth between nodes",
  ("[link.host]", "[link.hots]"): r"one of \[device\], \[nodes\], .*got '\[link.hots\]'\. Did you mean '\[link.host\]'",
  ("[nodes]", "[node]"): "key must be one of title, .*got 'node'. Did you mean 'nodes'",
  ("[nodes]\n", "[device.nodes]\n"): r"key of \[device\] must be .*got 'nodes'",
  (TEXT, 'title = "t"\nsource = "s"\ndevice = 3'): r"device must be a table with the keys format, peak",
  (TEXT, 'title = "t"\nsource = "s"\nlink = 3'): r"link must be a table of links, such as \[link.node\] .*, got 3\.",
}


def test_a_mistake_is_named_in_one_line(tmp_path):
  for change, message in MISTAKES.items():
    assert change[0] in TEXT
    with pytest.raises(ValueError, match=message) as error:
      cluster_file.read_cluster(written(tmp_path, TEXT.replace(*change)))
    assert "\n" not in str(error.value)


def test_the_documentation_shows_every_key(tmp_path):
  block, more = (block.text for block in blocks(ROOT / "docs" / "howto" / "clusters.md", "toml"))
  cluster_file.read_cluster(written(tmp_path, block))
  uplink, torus = (f"[{part}" for part in more.split("\n["))
  cluster_file.read_cluster(written(tmp_path, block + uplink.removeprefix("[")))
  cluster_file.read_cluster(written(tmp_path, block.replace("devices = 8", "devices = 1") + torus))
  for name, table in cluster_file.TABLES.items():
    assert not name or f"[{name}]" in block + more, name
    for key in table:
      assert f"{key} = " in block + more, key


PLAIN = TEXT.replace('library = "NCCL"\n', "").replace("duplex = 0.5\n", "")


def test_uplinks_reducing_switches_and_tori_are_read(tmp_path):
  more = "[uplink]\nnodes = 2\nshare = 0.25\n"
  cluster = cluster_file.read_cluster(
    written(tmp_path, TEXT.replace("count = 4", 'count = 4\nreduces = ["between"]') + more)
  )
  assert cluster.network.uplink == Uplink(2, 0.25) and cluster.network.reduces == ("between",)
  start, end = PLAIN.index("[link.device]"), PLAIN.index("[link.node]")
  torus = (PLAIN[:start] + PLAIN[end:]).replace("devices = 2", "devices = 1") + "[torus]\naxes = 3\nring = 4\n"
  assert cluster_file.read_cluster(written(tmp_path, torus)).network.torus == Torus(3, 4)


BETWEEN_MISTAKES = {  # replacement of "count = 4": message
  'count = 4\nreduces = ["up"]': r"nodes.reduces must be a list .*, got \['up'\]",
  'count = 4\nreduces = ["inside"]': "nodes.library must be set with nodes.reduces, got nothing",
  'count = 4\nreduces = "inside"': "nodes.reduces must be a list .*got 'inside'",
  "count = 4\n[torus]\naxes = 2\nring = 4": r"nodes.devices must be 1 with \[torus\], got 2",
  "count = 4\n[uplink]\nnodes = 2\nshare = 0": r"uplink.share must be in \[0\.0001, 1\], got 0\.",
  "count = 4\n[uplink]\nnodes = 2": "uplink.share must be a number .*got nothing",
}


def test_mistakes_in_sites_switches_and_tori_are_named(tmp_path):
  for text, message in BETWEEN_MISTAKES.items():
    with pytest.raises(ValueError, match=message):
      cluster_file.read_cluster(written(tmp_path, PLAIN.replace("card = 1e9\n", "").replace("count = 4", text)))


def test_only_text_files_are_read(tmp_path):
  binary, folder, pipe, large = (tmp_path / f"{name}.toml" for name in ("binary", "folder", "pipe", "large"))
  binary.write_bytes(b"\xff\x00\x01")
  folder.mkdir()
  os.mkfifo(pipe)
  large.write_bytes(b"#" * (2**20 + 1))
  for path, words in (
    (binary, "must be valid TOML"),
    (folder, "got a folder"),
    (pipe, "got a pipe"),
    (large, "got 1048577 bytes"),
  ):
    with pytest.raises(ValueError, match=words) as error:
      cluster_file.named(str(path))
    assert "\n" not in str(error.value) and str(path) in str(error.value)
  with pytest.raises(ValueError, match="title must be a text"):
    cluster_file.read_cluster(written(tmp_path, ""))


def test_a_missing_file_is_an_error():
  with pytest.raises(FileNotFoundError, match="no such file"):
    cluster_file.named("my.toml")


def test_the_examples_in_configs_are_valid():
  for path in (ROOT / "configs" / "clusters").glob("*.toml"):
    cluster = cluster_file.read_cluster(str(path))
    assert cluster.title and len(cluster.source) > 40 and cluster.workers, path


def test_scale_accepts_a_cluster_file(call, tmp_path):
  arguments = ("--model=vgg_a", f"--cluster={written(tmp_path, TEXT)}")
  code, out, error = call("scale", *arguments, "--nodes=1,2")
  assert code == 0 and "Four hosts of two" in out, error
  code, _, error = call("scale", *arguments, "--nodes=1,8")
  assert code == 2 and "has 4 nodes" in error
