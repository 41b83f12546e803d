"""A page with a grid: its section and findings, which pairs are tested, and frames with a column for each key."""

import json
from itertools import combinations, pairwise

import pytest
from helpers.comparisons import Tags, comparison, rising, rows_of, undrawn
from helpers.grids import grid

from ddl.names import comparable
from ddl.report import frames, grid_data, grid_page, grid_plot, reader, wording
from ddl.report import page as report
from ddl.report import table as table_rows

AXES = {"workers": (2, 4), "algorithm.period": (1, 4, 16)}
LACKS = {"sync": ["algorithm.period"]}


@pytest.fixture(autouse=True)
def quick_pictures():
  with undrawn():
    yield


def noisy(group, point, seed):
  """Period 4 is best for local, at all numbers of workers; it is better than sync by far."""
  best = {1: 0.004, 4: 0.001, 16: 0.008}[point.get("algorithm.period", 16)]
  return best * (1 if group == "local" else 3) * (1 + 0.01 * ((seed * 7 + point["workers"]) % 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return grid(tmp_path_factory.mktemp("grid"), AXES, noisy, lacks=LACKS, seeds=4)


def test_the_page_has_a_section_with_a_picture_of_each_key_and_quantity(folder):
  text = report.write_report(folder).read_text()
  page = Tags(text)
  assert not page.open
  ids = [attrs["id"] for tag, attrs in page.found if tag == "figure" and attrs["id"].startswith("grid_")]
  names = {each.stem for each in folder.glob("figures/grid_*.png")}
  assert set(ids) == names and len(ids) == len(names)
  quantities = ("loss", "step", "examples", "bytes", "seconds")
  assert names == {f"grid_{name}_vs_{key}" for name in quantities for key in ("workers", "period")} | {
    "grid_speedup_steps_vs_workers"
  }
  alts = {attrs["alt"].partition(".")[0] for tag, attrs in page.found if tag == "img"}
  assert "Final test loss against period" in alts
  kinds = [attrs.get("id") for tag, attrs in page.found if tag == "h2"]
  assert kinds.index("grid") < kinds.index("pictures") < kinds.index("pairs")
  assert "sync reads no period" in text


def test_pages_without_a_grid_have_no_section_and_lose_its_pictures(tmp_path):
  folder = comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96)] * 2, "dasgd": [rising(0.1, 0.5, 0.96)] * 2})
  (folder / "figures").mkdir()
  (folder / "figures/grid_loss_vs_period.png").write_bytes(b"")
  assert 'id="grid"' not in report.write_report(folder).read_text()
  assert not list(folder.glob("figures/grid_*"))


def test_the_pairs_are_those_at_one_point_and_those_that_differ_in_one_key(folder):
  read = reader.read(folder)
  rows = table_rows.rows(read)
  found = table_rows.pairs(rows, "test_loss")
  expected = {(a.label, b.label) for a, b in combinations(rows, 2) if comparable(a.place, b.place)}
  assert {pair for pair in found if pair in expected or pair[::-1] not in expected} == expected
  # sync: 1 of workers; local: 3 of workers and 2 x 3 of period; between: 6
  assert len(expected) == 1 + 3 + 6 + 6 and ("sync, workers 2", "local, workers 4, period 1") not in found
  frame = frames.pairs_frame(read)
  assert len(frame) == 16 * frame.quantity.nunique()
  assert found["local, workers 2, period 1", "local, workers 2, period 4"].sign == 1


def test_holms_correction_is_for_the_tested_pairs_alone(folder):
  found = table_rows.pairs(list(rows_of(folder).values()), "test_loss")
  least = min((pair for pair in found.values()), key=lambda pair: pair.p or 1.0)
  assert least.p is not None and least.p_holm == pytest.approx(16 * least.p)


def test_findings_tell_the_best_values_and_what_differs(folder):
  read = reader.read(folder)
  found = dict(grid_page.finding(read, table_rows.rows(read)))
  assert set(found) >= {"", "local, period", "local, workers"}
  assert "All 8 points" in found[""] and "lowest mean test loss at 4," in found["local, period"]
  assert "local lower at 6 of 6" in found["sync and local at the same point"]
  assert "sync, period" not in found and "speed-up in steps 2 with 4 over 2 workers" in found["local, workers"]


def test_the_first_sentence_names_a_cheapest_point_only_where_the_tests_do(tmp_path):
  places = {f"easgd, workers {n}": {"group": "easgd", "point": {"workers": n}} for n in (1, 2, 4)}
  shapes = [
    (rising(0.1, 0.5, 0.96), rising(0.1, 0.2, 0.3, 0.96)),
    (rising(0.1, 0.2, 0.96), rising(0.1, 0.4, 0.5, 0.97)),
  ]

  def told(name, *runs):
    runs = dict(zip(places, ([list(each) for each in runs]), strict=True))
    found = reader.read(comparison(tmp_path / name, runs, places=places, grid={"workers": [1, 2, 4]}))
    table = table_rows.rows(found)
    ranked = {cost: table_rows.ranking(table, cost)[:2] for cost in ("examples", "bytes_sent", "seconds")}
    return grid_page.headline(table, found), ranked

  text, ranked = told("level", shapes[0] * 2, shapes[1] * 2, shapes[1] * 2)
  assert all(len(rivals) == 2 for _, rivals in ranked.values())  # the tests tell none apart
  assert not any(label in text for label in places) and "measured time" in text
  slow, fast = [rising(*[0.1] * 30, 0.96)] * 3, [rising(0.1, 0.2, 0.96, *[0.97] * 28)] * 3
  text, ranked = told("clear", slow, fast, slow)
  assert all(first[0].label == "easgd, workers 2" and not rivals for first, rivals in ranked.values())
  assert "easgd, workers 2" in text and "easgd, workers 1" not in text


def test_bars_that_an_axis_cuts_have_arrows(tmp_path):
  places = {f"easgd, workers {n}": {"group": "easgd", "point": {"workers": n}} for n in (1, 2)}
  for name, ends, cut in (("wide", (0.5, 0.6), True), ("narrow", (0.5399, 0.5401), False)):
    runs = {label: [rising(0.1, 0.3, end + 0.01 * n) for end in ends] for n, label in enumerate(places)}
    found = reader.read(comparison(tmp_path / name, runs, places=places, grid={"workers": [1, 2]}))
    chart = grid_data.charts(found, table_rows.rows(found), "workers")[0]
    picture = grid_plot.picture(chart)
    arrows = {str(line.get_marker()): len(line.get_xdata()) for line in picture.figure.axes[0].lines}
    assert [arrows.get("^", 0), arrows.get("v", 0)] == [2 * cut, 2 * cut]
    assert any("arrow" in note for note in picture.caption) == cut


def test_one_worker_sends_nothing_and_is_not_called_the_lowest_in_bytes(tmp_path):
  places = {f"{group}, workers {n}": {"group": group, "point": {"workers": n}} for group in "ab" for n in (1, 2, 4)}
  runs = {}
  for label, place in places.items():
    many, seeds = place["point"]["workers"], [rising(0.1, 0.5 + 0.01 * n, 0.96) for n in range(3)]
    factor = (many - 1) * (1 if place["group"] == "a" else 2)
    runs[label] = [[line | {"bytes_sent": factor * line["bytes_sent"]} for line in seed] for seed in seeds]
  found = reader.read(comparison(tmp_path, runs, places=places, grid={"workers": [1, 2, 4]}))
  told = dict(grid_page.finding(found, table_rows.rows(found)))
  assert "lowest mean bytes of those that send any at 2, 1 of 1 pairs" in told["a, workers"]
  assert "bytes: a lower at 2 of 2 tested points" in told["a and b at the same point"]


def test_a_point_that_is_not_tested_against_the_cheapest_is_not_called_so(tmp_path):
  """They differ in two keys: that their intervals lie apart is no test."""
  points = {"few": {"workers": 2, "algorithm.period": 16}, "many": {"workers": 16, "algorithm.period": 1}}
  runs = {}
  for label, factor in {"few": 1.0, "many": 10.0}.items():
    seeds = [rising(0.1, 0.5 + 0.01 * n, 0.96) for n in range(3)]
    runs[label] = [[line | {"bytes_sent": factor * line["bytes_sent"]} for line in seed] for seed in seeds]
  places = {label: {"group": "local", "point": point} for label, point in points.items()}
  grid = {"workers": [2, 16], "algorithm.period": [1, 16]}
  found = reader.read(comparison(tmp_path, runs, places=places, grid=grid))
  table = table_rows.rows(found)
  ranked, rivals, unjudged = table_rows.ranking(table, "bytes_sent")
  assert [row.label for row in ranked] == ["few", "many"] and not rivals and unjudged == ranked[1:]
  assert table_rows.marks(table, "bytes_sent") == {"few": "best"}
  assert table_rows.marks(table, "examples") == {"few": "best", "many": "best"}  # the same means
  assert "Cheapest" not in grid_page.headline(table, found)


def test_a_point_is_marked_by_its_tests_against_any_of_the_best(tmp_path):
  """Two points are the best alike; another one is tested against the second of them alone, and is as good."""
  good = [rising(0.1, 0.5 + 0.02 * n, at, 0.99) for n, at in enumerate((0.97, 0.98, 0.99))]
  close = [rising(0.1, 0.5 + 0.02 * n, at, 0.99) for n, at in enumerate((0.975, 0.965, 0.985))]
  points = {"a": (1, 1), "b": (4, 4), "near b": (4, 8), "far": (1, 8), "bad": (4, 1)}
  bad = [rising(0.1, 0.12, 0.13 + 0.01 * n, 0.14) for n in range(3)]
  runs = {"a": good, "b": good, "near b": close, "far": bad, "bad": bad}
  places = {
    label: {"group": "local", "point": {"workers": w, "algorithm.period": p}} for label, (w, p) in points.items()
  }
  keys = {"workers": [1, 4], "algorithm.period": [1, 4, 8]}
  folder = comparison(tmp_path, runs, places=places, grid=keys)
  found = reader.read(folder)
  table = table_rows.rows(found)
  marked = table_rows.marks(table, "examples")
  assert marked == {"a": "best", "b": "best", "near b": "tied"}
  twin = {**places, "twin": {"group": "local", "point": {"workers": 1, "algorithm.period": 16}}}
  keys["algorithm.period"] += [16]
  folder = comparison(tmp_path / "twin", {**runs, "twin": close}, places=twin, grid=keys)
  marked = table_rows.marks(table_rows.rows(reader.read(folder)), "examples")  # it is tested against a alone
  assert marked == {"a": "best", "b": "best", "near b": "tied", "twin": "tied"}
  apart = {label: place for label, place in places.items() if label in ("a", "near b")}
  folder = comparison(tmp_path / "apart", {label: runs[label] for label in apart}, places=apart, grid=keys)
  assert table_rows.marks(table_rows.rows(reader.read(folder)), "examples") == {"a": "best"}
  assert "says nothing of it" in " ".join(report.table(folder).split())


def test_a_claim_says_how_many_points_no_test_compares_with_the_cheapest(tmp_path):
  def loss(group, point, seed):
    workers, period = point["workers"], point["algorithm.period"]
    return 0.001 if workers + period == 3 else 0.01 * (1 + 0.1 * ((seed * (workers + 3 * period)) % 5))

  read = reader.read(grid(tmp_path, {"workers": (2, 4), "algorithm.period": (1, 4)}, loss, groups=("local",), seeds=5))
  table = table_rows.rows(read)
  assert [row.label for row in table_rows.ranking(table, "examples").unjudged] == ["local, workers 4, period 4"]
  told = grid_page.headline(table, read)
  assert '"local, workers 2, period 1" in examples (no test with 1 other)' in told


def test_one_seed_claims_no_significance(tmp_path):
  read = reader.read(grid(tmp_path, AXES, noisy, lacks=LACKS, seeds=1))
  found = dict(grid_page.finding(read, table_rows.rows(read)))
  assert "One seed only" in found and not any(
    "significant" in text for each, text in found.items() if each != "One seed only"
  )


def test_frames_have_a_column_for_each_key(folder):
  read = reader.read(folder)
  table = frames.table_frame(read)
  assert list(table.columns[:4]) == ["label", "group", "workers", "algorithm.period"]
  pivot = table[table.group == "local"].pivot(index="algorithm.period", columns="workers", values="test_loss")
  assert pivot.shape == (3, 2) and pivot.loc[4, 2] == pytest.approx(0.001, rel=0.05)
  assert table[table.group == "sync"]["algorithm.period"].isna().all()
  metrics = frames.metrics_frame(read)
  assert list(metrics.columns[:5]) == ["label", "seed", "group", "workers", "algorithm.period"]
  assert len(metrics) == 8 * 4 * 5
  report.write_report(folder)
  line = json.loads((folder / "findings.json").read_text())["table"][0]
  assert (line["group"], line["workers"], line["algorithm.period"]) == ("sync", 2, None)


def test_the_table_for_a_terminal_has_the_points_in_columns(folder):
  head, _, first, *rest = [line.split() for line in report.table(folder).splitlines()]
  assert head[:3] == ["algorithm", "workers", "period"]
  assert first[:3] == ["sync", "2", "-"]
  assert ["local", "4", "16"] in [line[:3] for line in rest]


def test_panels_fill_their_figure(folder):
  """Bars that are cut have arrows outside of the clipping; a line without any must not stretch what is laid out."""
  found = reader.read(folder)
  chart = grid_data.charts(found, table_rows.rows(found), "workers")[0]
  figure = grid_plot.picture(chart).draw(True)
  figure.draw_without_rendering()
  assert len(figure.axes) > 1 and sum(axes.get_position().width for axes in figure.axes) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("wide", [True, False])
def test_labels_of_small_panels_do_not_touch_and_stay_inside(tmp_path, wide):
  axes = {"workers": (1, 2, 4, 8, 16, 32, 64, 320), "network.message_seconds": (0.125, 0.0625, 0.25)}
  found = reader.read(grid(tmp_path, axes, lambda group, point, seed: 0.01 / point["workers"]))
  for key in axes:
    for chart in grid_data.charts(found, table_rows.rows(found), key):
      figure = grid_plot.picture(chart).draw(wide)
      figure.draw_without_rendering()
      for panel in figure.axes:
        ticks = [each for each in panel.get_xticklabels() if each.get_text() and each.get_visible()]
        boxes = [each.get_window_extent() for each in ticks]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), (chart.title, key)
        for text in (panel.xaxis.label, panel.title, panel._left_title):
          box = text.get_window_extent()
          assert not text.get_text() or (box.x0 >= 0 and box.x1 <= figure.bbox.x1), (chart.title, text.get_text())


def test_a_wide_table_keeps_the_begin_of_each_label(tmp_path):
  axes = {"workers": (2, 16), "algorithm.period": (1, 16), "network.message_seconds": (0.125, 0.0625)}
  found = reader.read(grid(tmp_path, axes, noisy, groups=("local SGD", "post-local SGD of a long name")))
  lines = wording.text_lines(found, table_rows.rows(found))
  assert {line[: wording.LABEL].strip() for line in lines[2:]} == {"local SGD", "post-local SGD.."}
