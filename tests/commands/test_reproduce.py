"""`python run.py reproduce`: current pages, errors without fitted numbers, and limits of the models."""

import math
import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import reproduce_das, reproduce_sc17_gpus, reproduce_sc17_parts, reproduce_sc17_weak, reproduce_zou
from ddl.perf import cluster_file, neural_networks
from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.device import Efficiency, step_seconds
from ddl.perf.hybrid import best
from ddl.perf.layers import train_flop
from experiments.commands import reproduce
from experiments.papers import das, published_steps, sc17, zou
from experiments.papers.das import Terms, all_reduce_rate, step
from experiments.papers.page import (
  BETWEEN,
  MEMORY,
  PRODUCT,
  SECONDARY,
  Prediction,
  ReportedRow,
  Section,
  counted,
  errors,
  markdown,
)

FDR = cluster_file.named("cori_fdr")
IDEAL = Efficiency(0.5)


@pytest.fixture(scope="module")
def sections():
  return reproduce.sections()


@pytest.fixture(scope="module")
def page(sections):
  return markdown(sections)


def of(title, sections):
  """Return the section that has this beginning of a title."""
  return next(section for section in sections if section.title.startswith(title))


def test_pages_are_current(sections):
  for name, text in reproduce.pages(sections).items():
    assert (reproduce.FOLDER / name).read_text() == text, f"run: {reproduce.COMMAND}"


@pytest.mark.parametrize("old", [None, "an older page"])
def test_check_reports_an_outdated_or_missing_page(old, sections, tmp_path, monkeypatch, capsys):
  pages = reproduce.pages(sections)
  names = {section.picture[0] for section in sections if section.picture}
  drawn = [section._replace(picture=section.picture and (section.picture[0], lambda: b"PNG")) for section in sections]
  for name, value in (("FOLDER", tmp_path), ("sections", lambda: drawn), ("pages", lambda _: pages)):
    monkeypatch.setattr(reproduce, name, value)
  file = tmp_path / "reproduction.md"
  if old:
    file.write_text(old)
  assert reproduce.main(check=True) == 1
  assert reproduce.COMMAND in capsys.readouterr().out
  assert (file.read_text() if file.exists() else None) == old
  assert reproduce.main(check=False) == 0 and reproduce.main(check=True) == 0
  assert {file.name for file in tmp_path.iterdir()} == {*pages, *names} and len(names) == 2


@pytest.mark.slow
def test_pictures_are_drawn_next_to_the_page(sections):
  for section in sections:
    for _, draw in [section.picture] if section.picture else []:
      assert draw().startswith(b"\x89PNG")


def test_remarks_refer_to_existing_pictures(sections):
  for section in sections:
    for name, _ in [section.picture] if section.picture else []:
      assert f"]({name})" in "\n".join(section.remarks) and (reproduce.FOLDER / name).is_file()


def cells(section):
  """Return the rows of the table in the first remark of a section."""
  return [[cell.strip() for cell in line.strip("| ").split("|")] for line in section.remarks[0].splitlines()[2:]]


def test_stability_bounds_and_gossip_rates_match_theory(sections):
  """The radius is 1 at the stability limit; the distance shrinks by the graph's second eigenvalue."""
  for _, _, one, several, _, sync in cells(of("EASGD", sections)):
    for below, on, above in (map(float, radii.split(", ")) for radii in (one, sync)):
      assert below < on == 1 < above
    assert float(several.split(", ")[1]) < 1
  for graph, second, _, measured in cells(of("Gossip", sections)):
    if graph == "one peer exponential":
      assert float(second) == 0 and measured == "0 after 4 rounds"
    else:
      assert float(measured) == pytest.approx(float(second), abs=2e-4)


def test_every_config_has_a_section(sections):
  files = {f"configs/{path.name}" for path in (reproduce.ROOT / "configs").glob("reproduce_*")}
  assert {section.config for section in sections if section.config.startswith("configs/")} == files


def test_fitted_rows_equal_the_report_and_have_no_error(sections):
  fitted = 0
  for section in sections:
    for column in section.rows[0].predicted if section.rows else ():
      assert len(errors(section, column)) == sum(not row.predicted[column].fitted for row in section.rows)
    for row in section.rows:
      for prediction in row.predicted.values():
        if prediction.fitted:
          fitted += 1
          assert prediction.value == pytest.approx(row.reported, rel=1e-9)
  assert fitted == 2 + 3 + 1 + 4  # Das, GPUs, parts, weak scaling


def test_summary_excludes_fitted_numbers():
  def section(fitted):
    rows = [
      ReportedRow("a", 100.0, "x", {"model": Prediction(100.0, fitted)}),
      ReportedRow("b", 100.0, "x", {"model": Prediction(120.0)}),
      ReportedRow("c", 100.0, "x", {"model": Prediction(60.0)}),
      ReportedRow("d", 100.0, "x", {"model": Prediction(99.0)}, kind=BETWEEN),
      ReportedRow("e", 100.0, "x", {"model": Prediction(1.0)}, kind=PRODUCT),
      ReportedRow("f", 100.0, "x", {"model": Prediction(1.0)}, source=MEMORY),
    ]
    return Section("t", "c", "f", rows, "model")

  assert errors(section(True), "model") == pytest.approx([0.2, 0.4, 0.01, 0.99, 0.99])
  assert "of the 2 headline numbers that were predicted, not fitted: 30.0 %**" in markdown([section(True)])
  assert "of the 3 headline numbers that were predicted, not fitted: 20.0 %" in markdown([section(False)])
  assert "| a | 100x | 100x | fitted |\n| b | 100x | 120x | +20.0 % |" in markdown([section(True)])


def test_summary_is_the_median_of_the_counted_rows(sections, page):
  result = counted(sections)
  assert len(result) == 5 + 4  # Das, GPUs
  assert not [row for row, _ in result if row.source == MEMORY or row.kind == PRODUCT]
  assert f"not fitted: {100 * statistics.median(e for _, e in result):.1f} %**" in page


def test_marks_of_sources(sections, page):
  """Numbers of abstracts have no mark; secondary ones and those from memory have theirs."""
  rows = {row.what: row for section in sections for row in section.rows}
  plain = {what for what, row in rows.items() if not row.source}
  assert plain == {
    *reproduce_das.get_config().rows, "Sync EASGD 3 over Original EASGD", "Sync EASGD 3, communication",
    "GoogLeNet, 64 nodes (4352 cores)",
  }  # fmt: skip
  assert rows["16 parts"].source == rows["Sync EASGD 2 over 1"].source == SECONDARY
  assert f"| 80.3 %{MEMORY} |" in page and f"| 490 s{SECONDARY} |" in page


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["vgg_a", "overfeat_fast", "cd_dnn"]), st.sampled_from([1, 2, 16, 64]), st.floats(0, 2))
def test_das_with_a_perfect_network_loses_only_efficiency_of_small_batches(name, nodes, half):
  perfect = FDR._replace(network=NetworkModel(LinkModel(0.0, math.inf)))
  result = step(neural_networks.table(name), 256, nodes, perfect, Efficiency(0.5, half)).speedup
  assert result == pytest.approx((256 + half) / (256 / nodes + half))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["vgg_a", "cd_dnn"]), st.sampled_from([2, 16, 64]), st.floats(1e7, 1e10), st.floats(1, 10))
def test_das_gains_from_bandwidth_up_to_a_speedup_of_n(name, nodes, bandwidth, factor):
  slow, fast = (
    step(neural_networks.table(name), 256, nodes, FDR._replace(network=NetworkModel(LinkModel(1e-6, b))), IDEAL).speedup
    for b in (bandwidth, bandwidth * factor)
  )
  assert slow <= fast * (1 + 1e-9) and fast <= nodes * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["vgg_a", "cd_dnn"]), st.sampled_from([2, 16, 64]), st.floats(1e6, 1e10))
def test_das_step_is_at_least_its_compute_and_messages(name, nodes, bandwidth):
  table, link = neural_networks.table(name), LinkModel(1e-6, bandwidth)
  single = step_seconds(train_flop(table), 256, FDR.device, IDEAL)
  seconds = step(table, 256, nodes, FDR._replace(network=NetworkModel(link)), IDEAL).seconds
  options = [best(layer, 256, nodes)[1] for layer in table]
  assert seconds * (1 + 1e-9) >= sum(v.data for v in options) / bandwidth
  assert seconds * (1 + 1e-9) >= single / nodes + sum(v.model for v in options) / bandwidth


def test_das_speedup_of_one_node_is_1():
  for terms in (Terms(), Terms(True, 0.4, 0.9)):
    assert step(neural_networks.table("vgg_a"), 256, 1, FDR, Efficiency(0.5, 3.0), terms).speedup == pytest.approx(1)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["vgg_a", "overfeat_fast", "cd_dnn"]), st.sampled_from([2, 16, 64]), st.floats(0.05, 1))
def test_das_with_slower_links_or_fewer_cores_is_slower(name, nodes, share):
  full, slow, few = (
    step(neural_networks.table(name), 256, nodes, FDR, IDEAL, Terms(True, *shares)).seconds
    for shares in ((1.0, 1.0), (share, 1.0), (1.0, share))
  )
  assert full <= slow * (1 + 1e-9) and full <= few * (1 + 1e-9) <= full / share * (1 + 2e-9)


def test_das_exchange_of_both_halves_on_a_slow_link():
  """Data-parallel layers send 2 (p - 1) / p of the weights instead of once the weights."""
  link = LinkModel(0.0, 1e6)
  convolutions = neural_networks.table("vgg_a")[:8]  # with many examples, one node per group
  slow = FDR._replace(network=NetworkModel(link))
  once, twice = (step(convolutions, 4096, 4, slow, IDEAL, Terms(halves)) for halves in (False, True))
  weights = 4 * sum(layer.weights for layer in convolutions)
  assert once.waiting == twice.waiting == 0
  assert (twice.seconds - once.seconds) == pytest.approx((2 * 3 / 4 - 1) * weights / 1e6, rel=1e-2)
  assert once.messages == 2 * 3 * 8


def test_das_terms_follow_from_measurements():
  assert all_reduce_rate(16, 67108864, 46.53e-3) == pytest.approx(2.704e9, rel=1e-3)
  config = reproduce_das.get_config()
  fdr, ethernet = das.terms(config, "cori_fdr"), das.terms(config, "aws_c4_8xlarge")
  assert fdr.rate == pytest.approx((2.704 + 2.625) / 2 / 7, rel=1e-3) and fdr.cores == 31 / 32
  assert das.terms(config, "cori_fdr", larger=True).rate == pytest.approx((5.531 + 5.135) / 2 / 7, rel=1e-3)
  assert ethernet == Terms(True, 1460 / 1538, 17 / 18)


@pytest.mark.parametrize("reading", [sc17.TURNS, sc17.TOGETHER])
def test_sc17_rounds_of_the_gpus(reading):
  config = reproduce_sc17_gpus.get_config()
  result = sc17.rounds(config, reading)
  original, first, second, third = result.values()
  assert original.total == pytest.approx(1) and original.communication == pytest.approx(0.87)
  assert original.host_parameters / first.host_parameters == pytest.approx(8 / 3)  # P / log2 P
  assert original.computing / first.computing == pytest.approx(8 if reading == sc17.TURNS else 1)
  assert third.hidden == pytest.approx(min(second.device_parameters, second.data + second.computing))
  gains = sc17.gains(result)
  assert gains["whole"] == pytest.approx(gains["first"] * gains["second"] * gains["third"])


def test_sc17_rounds_with_copies_through_the_host():
  """A message takes m = 86 / 16 of 100, an exchange 2 (p - 1) / p m; between GPUs half, of which half is hidden."""
  result = sc17.rounds(reproduce_sc17_gpus.get_config(), sc17.STAGED)
  m = 2 * 7 / 8 * 86 / 16
  totals = [100, m + 14, m / 2 + 14, m / 4 + 14]
  assert [100 * times.total for times in result.values()] == pytest.approx(totals)
  gains = sc17.gains(result)
  assert [*gains.values()] == pytest.approx([4.27, 1.25, 1.14, 6.12], abs=5e-3)
  third = result[sc17.SYNC3]
  assert (third.device_parameters - third.hidden) / third.total == pytest.approx(0.144, abs=5e-4)


def test_sc17_overlap_hides_a_short_exchange():
  config = reproduce_sc17_gpus.get_config()
  with config.unlocked():
    config.parameters = 0.2
  third = sc17.rounds(config, sc17.TOGETHER)[sc17.SYNC3]
  assert third.hidden == pytest.approx(third.device_parameters)
  assert third.total == pytest.approx(third.data + third.computing)


@given(st.floats(0, 1), st.sampled_from([4, 8, 16]))
def test_sc17_fit_of_amdahls_law_recovers_the_serial_share(serial, fitted):
  seconds = {p: 1605 * (serial + (1 - serial) / p) for p in (1, 4, 8, 16)}
  assert sc17.amdahl(seconds, fitted) == pytest.approx(seconds)


@pytest.mark.parametrize("network", ["GoogLeNet", "VGG-19"])
def test_sc17_weak_scaling(network):
  config = reproduce_sc17_weak.get_config()
  best, _ = sc17.efficiencies(config, network, "best")
  tree, step = sc17.efficiencies(config, network, "tree")
  assert step > 0 and best[0] == tree[0] == 1
  assert best == sorted(best, reverse=True) and tree == sorted(tree, reverse=True)
  assert 1 / tree[-1] - 1 == pytest.approx(6 * (1 / tree[1] - 1))  # log2 64 levels
  assert 1 / best[-1] - 1 == pytest.approx(2 * 63 / 64 * (1 / best[1] - 1), rel=0.02)  # and latencies


def test_reported_numbers_of_the_configs():
  assert [r.reported for r in reproduce_das.get_config().rows.values()] == [90, 53, 42, 6.5, 14]
  assert dict(reproduce_sc17_gpus.get_config().gains) == {"first": 3.7, "second": 1.3, "third": 1.1, "whole": 5.3}
  assert dict(reproduce_sc17_parts.get_config().seconds) == {1: 1605, 4: 1025, 8: 823, 16: 490}


def test_columns_with_one_value_for_all_rows_are_named_baselines(sections):
  for section in sections:
    for column in section.rows[0].predicted if section.rows else ():
      constant = len({row.predicted[column].value for row in section.rows}) == 1
      assert constant == column.startswith("baseline: ")


def test_dasgd_exchange_compared_with_the_cheapest(sections):
  nbytes, between, inside = 4 * 138_357_544, 70e9 / 8, 300e9  # VGG-16
  best = 2 * nbytes * (31 / 32 / between + 7 / 8 / inside)  # by levels: 32 nodes of 8
  tree = 2 * nbytes / between * (5 + 0.029)
  message = f"takes {1e3 * best:.0f} ms for VGG-16 instead of {1e3 * tree:.0f} ms, {tree / best:.1f} times less"
  assert message in " ".join(of("DaSGD", sections).remarks)


def test_dasgd_ranges_of_delays(sections):
  table = of("DaSGD", sections).remarks[0]
  delays = [int(result) for result in re.findall(r"\| (\d+) <= d <= tau", table)]
  assert delays == [1, 2, 3, 10, 2, 7, 1, 1, 1, 2]  # of a port of the authors' model, batch 128 and 32 of each network
  assert table.count("not with tau = 4") == 2


def test_device_steps_list_every_point_and_the_median_of_the_held_out_ones():
  output = published_steps.results()
  steps, reported = published_steps.steps_page(), "\n".join(published_steps.section().remarks)
  assert steps.count("| held out: ") + steps.count("| fitted |") == len(output) == 427
  held = [abs(result.error) for result in output if result.point.use != "fitted"]
  assert f"of the {len(held)} held-out steps is {100 * statistics.median(held):.1f} %" in reported
  assert statistics.median(held) < 0.15


def test_the_0_1_program_reduces_the_errors_of_steps():
  """It improves every point with the fitted shares, and not all with half of the peak."""
  columns = list(published_steps.by_column().values())
  half, program, direct, fast = ([abs(error) for error in column] for column in columns)
  assert statistics.median(fast) < 0.1 < 0.2 < min(map(statistics.median, (half, program, direct)))
  assert sum(a < b for a, b in zip(program, half, strict=True)) < len(half)
  assert all(a < b for a, b in zip(fast, direct, strict=True))


@given(st.sampled_from([1, 2, 4, 16]), st.floats(1e-3, 10))
def test_zou_simulated_efficiency_equals_the_lemma(gpus, overhead):
  expected = (1 + overhead) / (1 + gpus * overhead)
  assert zou.simulated_efficiency(gpus, overhead) == pytest.approx(expected)


@pytest.mark.parametrize(("gigabits", "needed"), [(10, 2), (1, 16)])
def test_zou_workers_wait_with_one_server_fewer(page, gigabits, needed):
  config = reproduce_zou.get_config()
  few, enough = (zou.waiting(config, gigabits, servers) for servers in (needed - 1, needed))
  assert few > 0.03 and enough < 0.01
  assert f"| {gigabits} Gb/s | {needed} |" in page
