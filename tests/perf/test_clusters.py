"""Built-in clusters: plausible figures, named sources, and lookup by name."""

import math

import pytest

from ddl.perf.cluster_file import built_in, named
from ddl.perf.device import chips, step_seconds
from ddl.perf.device_step import find


def test_every_cluster_has_plausible_figures():
  for name in built_in():
    cluster = named(name)
    links = filter(None, (cluster.network.between, cluster.network.inside, cluster.host))
    assert all(link.latency >= 0 < link.bandwidth and 0 <= link.duplex <= 1 for link in links), name
    *rates, start, width, chip = cluster.device
    assert all(math.isfinite(figure) and figure > 0 for figure in rates) and 0 <= start < 1e-3, name
    formats = {word: nbytes for word, nbytes in (("float32", 4), ("bfloat16", 2)) if word in cluster.source}
    assert list(formats.values()) == [width], f"{name}: the source must name the format of the peak"
    assert step_seconds(1e9, 1, cluster.device, cluster.efficiency) > 0
    assert cluster.efficiency.best < 1 and find(cluster.device, "").ends, f"{name}: no device reaches its peak"
    if chip in chips():  # its efficiency is used, so it must be the same device
      assert cluster.device.memory_bandwidth == pytest.approx(chips()[chip].memory_bandwidth, rel=2e-3), name
      assert cluster.device.peak in chips()[chip].peaks.values() and cluster.device.memory == chips()[chip].memory
    assert (cluster.network.per_node > 1) == (cluster.network.inside is not None), name
    assert cluster.workers is None or cluster.workers >= 1
    assert cluster.title and any(word in cluster.source for word in ("arXiv", "data sheet", "page")), name
    if cluster.network.inside is not None:
      share = cluster.network.between.bandwidth / cluster.network.per_node
      assert cluster.network.inside.bandwidth >= share, name
      assert cluster.network.inside.latency <= cluster.network.between.latency, name


def test_flop_per_byte_are_those_reported_by_das():
  """arXiv 1602.06709."""
  for name, flop_per_byte in (("cori_fdr", 336), ("aws_c4_8xlarge", 1336), ("asr", 333)):
    cluster = named(name)
    assert round(cluster.device.peak / cluster.network.between.bandwidth) == flop_per_byte, name


def test_networks_of_sc17_send_alexnet_in_the_published_seconds():
  nbytes = 249e6
  assert named("fdr").network.between.seconds(nbytes) == pytest.approx(0.7e-6 + 0.2e-9 * nbytes, rel=1e-12)
  assert named("qdr").network.between.seconds(nbytes) == pytest.approx(1.2e-6 + 0.3e-9 * nbytes, rel=1e-12)
  assert named("ethernet_10g").network.between.seconds(0) == pytest.approx(7.2e-6)


def test_parts_of_a_chip_sum_to_the_chip():
  for parts in (4, 8, 16):
    cluster = named(f"knl_{parts}_parts")
    assert cluster.workers == parts
    chip = named("knl_aries").device
    assert [parts * figure for figure in cluster.device[:3]] == pytest.approx(list(chip[:3]))
    assert cluster.device[3:] == chip[3:]


def test_an_unknown_name_is_rejected_with_the_nearest_name():
  with pytest.raises(
    ValueError, match=r"cluster must be one of asr, .*, got 'h100_ib40'\. Did you mean 'h100_ib400'\?"
  ) as e:
    named("h100_ib40")
  assert "\n" not in str(e.value)
  with pytest.raises(ValueError, match=r"cluster must be one of .*, got 'zzz'\. A path that ends with \.toml "):
    named("zzz")
