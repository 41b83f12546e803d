"""Every cluster can be, says where its figures are from, and is found by its name."""

import math

import pytest

from ddl.perf.cluster import check_link
from ddl.perf.cluster_file import built_in, named
from ddl.perf.device import chips, step_seconds
from ddl.perf.device_step import find


@pytest.mark.parametrize("name", built_in())
def test_an_entry_can_be(name):
  cluster = named(name)
  check_link(name, cluster.network.between)
  for link in (cluster.network.inside, cluster.host):
    if link is not None:
      check_link(name, link)
  *rates, start, width, chip = cluster.device
  assert all(math.isfinite(figure) and figure > 0 for figure in rates) and 0 <= start < 1e-3
  formats = {word: nbytes for word, nbytes in (("float32", 4), ("bfloat16", 2)) if word in cluster.source}
  assert list(formats.values()) == [width], "the source has to name the one format that the peak is of"
  assert step_seconds(1e9, 1, cluster.device, cluster.efficiency) > 0
  assert cluster.efficiency.best < 1 and find(cluster.device, "").ends, "no cluster assumes all of the peak"
  if chip in chips():  # another GPU's name would give another's efficiency
    assert cluster.device.memory_bandwidth == pytest.approx(chips()[chip].memory_bandwidth, rel=2e-3)
    assert cluster.device.peak in chips()[chip].peaks.values() and cluster.device.memory == chips()[chip].memory
  assert (cluster.network.per_node > 1) == (cluster.network.inside is not None)
  assert cluster.workers is None or cluster.workers >= 1
  assert cluster.title and ("arXiv" in cluster.source or "data sheet" in cluster.source or "page" in cluster.source)


def test_the_inside_of_a_node_is_not_slower_than_what_a_worker_has_of_the_link_between():
  for name, cluster in {name: named(name) for name in built_in()}.items():
    if cluster.network.inside is not None:
      share = cluster.network.between.bandwidth / cluster.network.per_node
      assert cluster.network.inside.bandwidth >= share, name
      assert cluster.network.inside.latency <= cluster.network.between.latency, name


@pytest.mark.parametrize(("name", "flop_per_byte"), [("cori_fdr", 336), ("aws_c4_8xlarge", 1336), ("asr", 333)])
def test_the_ratios_of_computation_to_communication_reported_by_das(name, flop_per_byte):
  cluster = named(name)
  assert round(cluster.device.peak / cluster.network.between.bandwidth) == flop_per_byte  # arXiv 1602.06709


def test_the_networks_of_sc17_send_alexnet_in_the_times_of_their_table():
  nbytes = 249e6
  assert named("fdr").network.between.seconds(nbytes) == pytest.approx(0.7e-6 + 0.2e-9 * nbytes, rel=1e-12)
  assert named("qdr").network.between.seconds(nbytes) == pytest.approx(1.2e-6 + 0.3e-9 * nbytes, rel=1e-12)
  assert named("ethernet_10g").network.between.seconds(0) == pytest.approx(7.2e-6)


def test_parts_of_a_chip_are_the_chip():
  for parts in (4, 8, 16):
    cluster = named(f"knl_{parts}_parts")
    assert cluster.workers == parts
    chip = named("knl_aries").device
    assert [parts * figure for figure in cluster.device[:3]] == pytest.approx(list(chip[:3]))
    assert cluster.device[3:] == chip[3:]


def test_an_unknown_name_is_one_line_with_the_nearest():
  with pytest.raises(
    ValueError, match=r"cluster must be one of asr, .*, got 'h100_ib40'\. Did you mean 'h100_ib400'\?"
  ) as e:
    named("h100_ib40")
  assert "\n" not in str(e.value)
  with pytest.raises(ValueError, match=r"cluster must be one of .*, got 'zzz'\.$"):
    named("zzz")
