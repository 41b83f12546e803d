"""The data of a grid's pictures: lines, panels, level lines, speed-ups and slopes, against figures by hand."""

import math

import pytest
from helpers.comparisons import undrawn
from helpers.grids import grid

from ddl.report import grid_data, page, reader, table


def charts(folder, key):
  comparison = reader.read(folder)
  return {chart.title: chart for chart in grid_data.charts(comparison, table.rows(comparison), key)}


def constant(group, point, seed):
  return 0.01


def test_a_line_per_group_and_a_panel_per_value_of_the_other_key(tmp_path):
  def loss(group, point, seed):
    return (0.01 if group == "sync" else 0.02) * point["workers"] * (1 + 0.1 * seed)

  path = grid(tmp_path, {"workers": (2, 4, 8), "algorithm.period": (1, 16)}, loss, lacks={"sync": ["algorithm.period"]})
  chart = charts(path, "workers")["Final test loss against workers"]
  assert [panel.title for panel in chart.panels] == ["period 1", "period 16"]
  for panel in chart.panels:
    sync, local = panel.lines
    assert (sync.group, sync.number, sync.level) == ("sync", 0, False) and local.group == "local"
    assert sync.x == [2, 4, 8] and [each.mean for each in sync.estimates] == pytest.approx([0.022, 0.044, 0.088])
  assert chart.log_x and chart.ticks == {2: "2", 4: "4", 8: "8"} and chart.numbers
  chart = charts(path, "algorithm.period")["Final test loss against period"]
  assert [panel.title for panel in chart.panels] == ["workers 2", "workers 4", "workers 8"]
  sync, local = chart.panels[0].lines
  assert sync.level and not local.level and sync.x == local.x == [1, 16]
  assert sync.estimates[0].mean == sync.estimates[1].mean == pytest.approx(0.022)
  assert any("sync" in note for note in chart.notes)


def test_three_keys_have_panels_in_rows_and_columns(tmp_path):
  path = grid(tmp_path, {"workers": (2, 4), "batch": (1, 2), "algorithm.period": (1, 4, 8)}, constant)
  chart = charts(path, "workers")["Final test loss against workers"]
  assert len(chart.panels) == 6 and chart.columns == 3
  assert chart.panels[1].title == "batch 1, period 4"


def test_names_are_categories_in_their_order(tmp_path):
  path = grid(tmp_path, {"schedule.name": ("linear", "constant"), "partition.repeat": (True, False)}, constant)
  chart = charts(path, "schedule.name")["Final test loss against schedule"]
  assert chart.ticks == {0: "linear", 1: "constant"} and not chart.numbers and not chart.log_x
  assert [panel.title for panel in chart.panels] == ["repeat True", "repeat False"]
  assert grid_data.slope(chart, chart.panels[0].lines[0]) is None


def test_the_speedup_is_over_the_fewest_workers_seed_by_seed(tmp_path):
  """The loss falls by equal factors, so that 0.1 is met after log 0.1 / log(last) of the steps."""
  path = grid(tmp_path, {"workers": (2, 4, 8)}, lambda group, point, seed: 0.01 / (1 + seed), groups=("local",))
  found = charts(path, "workers")
  chart = found["Speed-up in steps to 0.1 against workers"]
  (line,) = chart.panels[0].lines
  assert chart.ideal == 2 and chart.log_x and chart.log_y and line.x == [2, 4, 8]
  assert [each.mean for each in line.estimates] == pytest.approx([1, 2, 4])  # as many steps fewer as workers more
  assert line.estimates[1].interval == pytest.approx((2, 2))
  assert not any("seconds" in title for title in found if title.startswith("Speed-up"))  # workers share the device


def test_without_the_target_at_the_fewest_workers_there_is_no_speedup(tmp_path):
  path = grid(tmp_path, {"workers": (1, 4)}, lambda group, point, seed: 0.5 if point["workers"] == 1 and group == "sync"
              else 0.01)  # fmt: skip
  chart = charts(path, "workers")["Speed-up in steps to 0.1 against workers"]
  assert [line.group for line in chart.panels[0].lines] == ["local"] and any("sync" in note for note in chart.notes)


def test_slopes_are_those_of_the_logarithms_with_students_interval(tmp_path):
  powers = (-0.4, -0.5, -0.6)

  def loss(group, point, seed):
    return 0.05 * point["workers"] ** powers[seed]

  path = grid(tmp_path, {"workers": (1, 2, 4, 8)}, loss, groups=("local",))
  chart = charts(path, "workers")["Final test loss against workers"]
  found = grid_data.slope(chart, chart.panels[0].lines[0])
  half = 4.302652729911275 * 0.1 / math.sqrt(3)  # t(0.975, 2) s / sqrt(n)
  assert found is not None and found.mean == pytest.approx(-0.5) and found.seeds == 3
  assert found.interval == pytest.approx((-0.5 - half, -0.5 + half))
  two = grid(tmp_path / "two", {"workers": (1, 2)}, loss, groups=("local",))
  chart = charts(two, "workers")["Final test loss against workers"]
  assert grid_data.slope(chart, chart.panels[0].lines[0]) is None


def test_a_mean_of_some_seeds_is_marked(tmp_path):
  path = grid(tmp_path, {"workers": (2, 4)}, lambda group, point, seed: 0.5 if seed == 0 else 0.01, groups=("local",))
  chart = charts(path, "workers")["Steps to 0.1 against workers"]
  assert chart.panels[0].lines[0].partial == [True, True] and chart.notes


def test_budgets_of_a_grid_with_steps_are_each_its_own(tmp_path):
  path = grid(tmp_path, {"workers": (1, 8), "steps": (40,)}, constant)
  assert all(row.finished == 3 for row in table.rows(reader.read(path)))
  assert list(grid_data.axes(reader.read(path))) == ["workers"]


def test_a_target_that_is_met_at_the_start_is_drawn_without_costs(tmp_path):
  path = grid(tmp_path, {"workers": (2, 4)}, constant, value=2.0)
  found = charts(path, "workers")
  assert list(found) == ["Final test loss against workers"]
  with undrawn():
    assert page.write_report(path).exists()
