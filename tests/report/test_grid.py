"""Grids: points and speed-ups against values by hand; tested pairs; the page's section; frames."""

import json
from itertools import combinations

import pytest
from helpers.comparisons import Tags, comparison, frames_of, quantity, rising, table_of, undrawn_page
from helpers.grids import grid

from ddl.names import comparable
from ddl.report import figure, frames, page, reader, tables
from ddl.report import grid as grids
from ddl.report.sentences import EARLY

AXES = {"workers": (2, 4), "algorithm.period": (1, 4, 16)}
LACKS = {"sync": ["algorithm.period"]}


def charts(folder, key):
  result = frames_of(folder)
  return {chart.title: chart for chart in grids.charts(result, key)}


def noisy(group, point, seed):
  """Return losses that are lowest for local with period 4, and much higher for sync."""
  best = {1: 0.004, 4: 0.001, 16: 0.008}[point.get("algorithm.period", 16)]
  return best * (1 if group == "local" else 3) * (1 + 0.01 * ((seed * 7 + point["workers"]) % 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return grid(tmp_path_factory.mktemp("grid"), AXES, noisy, lacks=LACKS, seeds=4)


def test_a_line_per_group_and_a_panel_per_value_of_the_other_key(tmp_path):
  def loss(group, point, seed):
    return (0.01 if group == "sync" else 0.02) * point["workers"] * (1 + 0.1 * seed)

  path = grid(tmp_path, {"workers": (2, 4, 8), "algorithm.period": (1, 16)}, loss, lacks=LACKS)
  points = charts(path, "workers")["Final test loss against workers"].points
  assert list(dict.fromkeys(points.panel)) == ["period 1", "period 16"] and not points.level.any()
  for _, panel in points.groupby("panel"):
    sync = panel[panel.group == "sync"]
    assert sync.x.tolist() == [2, 4, 8] and sync.y.tolist() == pytest.approx([0.022, 0.044, 0.088])
  points = charts(path, "algorithm.period")["Final test loss against period"].points
  assert list(dict.fromkeys(points.panel)) == ["workers 2", "workers 4", "workers 8"]
  sync = points[(points.group == "sync") & (points.panel == "workers 2")]
  assert sync.level.all() and sync.x.tolist() == [1, 16] and sync.y.tolist() == pytest.approx([0.022] * 2)


@pytest.mark.parametrize(("periods", "kind"), [((4, 16), "log"), ((4, 15), "linear"), ((0, 16), "linear")])
def test_a_key_whose_values_differ_fourfold_has_a_log_axis(tmp_path, periods, kind):
  path = grid(tmp_path, {"algorithm.period": periods}, lambda *_: 0.01)
  spec = grids.picture(frames_of(path), charts(path, "algorithm.period")["Final test loss against period"]).spec()
  assert spec["layer"][0]["encoding"]["x"]["scale"]["type"] == kind


def test_text_values_are_categories_in_their_order(tmp_path):
  path = grid(tmp_path, {"schedule.name": ("linear", "constant"), "partition.repeat": (True, False)}, lambda *_: 0.01)
  chart = charts(path, "schedule.name")["Final test loss against schedule"]
  assert dict(zip(chart.points.x, chart.points.tick, strict=True)) == {0: "linear", 1: "constant"}
  assert list(dict.fromkeys(chart.points.panel)) == ["repeat True", "repeat False"]


def test_speedup_is_over_the_fewest_workers_paired_by_seed(tmp_path):
  """The loss falls exponentially, so 0.1 is met after log 0.1 / log(last) of the steps."""
  path = grid(tmp_path, {"workers": (2, 4, 8)}, lambda group, point, seed: 0.01 / (1 + seed), groups=("local",))
  result = charts(path, "workers")
  chart = result["Speed-up in steps to 0.1 against workers"]
  assert chart.speedup_over == 2 and chart.points.x.tolist() == [2, 4, 8]
  assert chart.points.y.tolist() == pytest.approx([1, 2, 4])  # steps are inversely proportional to workers
  assert chart.points[["low", "high"]].iloc[1].tolist() == pytest.approx([2, 2])
  assert not any("seconds" in title for title in result if title.startswith("Speed-up"))  # workers share the device


def test_a_seed_that_misses_the_target_makes_a_mean_partial_and_leaves_no_speedup(tmp_path):
  def late(group, point, seed):
    return 0.5 if (group, point["workers"], seed) == ("sync", 2, 0) else 0.01

  result = charts(grid(tmp_path, {"workers": (2, 4)}, late), "workers")
  points = result["Steps to 0.1 against workers"].points
  assert points[points.partial][["group", "x"]].to_numpy().tolist() == [["sync", 2]]
  assert set(result["Speed-up in steps to 0.1 against workers"].points.group) == {"local"}


def test_early_costs_mark_speedups(tmp_path):
  soon, late = rising(0.1, 0.96, 0.97, 0.97), rising(0.1, 0.5, 0.96, 0.97)
  places = {f"easgd, workers {n}": {"group": "easgd", "point": {"workers": n}} for n in (1, 2, 4)}
  sizes = {label: {"workers": n, "steps": 3200 // n} for label, n in zip(places, (1, 2, 4), strict=True)}
  for name, first in (("early", soon), ("calm", late)):
    runs = dict(zip(places, ([first] * 2, [late] * 2, [late] * 2), strict=True))
    path = comparison(tmp_path / name, runs, settings=sizes, places=places, grid={"workers": [1, 2, 4]})
    key = grids.section(frames_of(path), "workers")
    notes = " ".join(note for picture in key["shown"] + key["costs"] for note in picture.caption)
    speedup = next(picture for picture in key["shown"] if "speedup" in picture.name)
    assert (EARLY in speedup.title) == (EARLY in notes) == (name == "early")


def test_an_accuracy_far_below_the_others_is_off_the_axis_and_named(tmp_path):
  ends = {2: 0.1, 4: 0.96, 8: 0.97}
  places = {f"sync {n}": {"group": "sync", "point": {"workers": n}} for n in ends}
  runs = {label: [rising(0.1, 0.5, end)] * 2 for label, end in zip(places, ends.values(), strict=True)}
  folder = comparison(tmp_path, runs, places=places, grid={"workers": list(ends)})
  (picture, *_) = grids.section(frames_of(folder), "workers")["shown"]
  assert [note for note in picture.caption if "sync 2 (10.00 %)" in note]
  scales = [layer["encoding"]["y"].get("scale") for layer in picture.spec()["layer"]]
  low, high = next(scale["domain"] for scale in scales if scale)
  assert 0.9 < low < 0.96 and 0.97 < high < 1


@pytest.mark.filterwarnings("error")
def test_a_target_met_at_the_start_has_no_cost_charts(tmp_path):
  path = grid(tmp_path, {"workers": (1, 8), "steps": (40,)}, lambda *_: 0.01, value=2.0)
  assert (table_of(path).finished == 3).all()  # although the grid gives some of them fewer steps
  assert list(figure.axes(reader.read(path))) == ["workers"]
  assert list(charts(path, "workers")) == ["Final test loss against workers"]
  assert page.pictures(path, frames_of(path))


def test_page_has_a_grid_figure_for_each_key_and_quantity(folder):
  (folder / "figures").mkdir()
  (folder / "figures/grid_old_vs_rate.png").write_bytes(b"")  # to be deleted
  text = undrawn_page(folder)
  result = Tags(text)
  assert not result.open
  ids = [attrs["id"] for tag, attrs in result.tags if tag == "figure" and attrs["id"].startswith("grid_")]
  quantities = ("loss", "step", "examples", "bytes", "seconds")
  names = {f"grid_{name}_vs_{key}" for name in quantities for key in ("workers", "period")}
  files = {file.stem for file in folder.glob("figures/grid_*.png")}
  assert set(ids) == files == names | {"grid_speedup_steps_vs_workers"}
  kinds = [attrs.get("id") for tag, attrs in result.tags if tag == "h2"]
  assert kinds.index("grid") < kinds.index("curves") < kinds.index("pairs")
  assert "Dashed: sync does not use period" in text
  line = json.loads((folder / "findings.json").read_text())["table"][0]
  assert (line["group"], line["workers"], line["algorithm.period"]) == ("sync", 2, None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
  "keys", [AXES, {"workers": (1, 2, 320)}, {"schedule.name": ("a", "b"), "batch": (1, 2), "steps": (1, 2)}]
)
@pytest.mark.sampled(2)
def test_grid_figures_have_data_and_specifications(tmp_path, keys):
  path = grid(tmp_path, keys, lambda group, point, seed: 0.01 / (1 + point.get("workers", 1)) * (1 + 0.1 * seed))
  result = frames_of(path)
  sections = [grids.section(result, key) for key in figure.axes(result.comparison)]
  pictures = [picture for section in sections for picture in (*section["shown"], *section["costs"][:1])]
  for number, picture in enumerate(pictures):
    assert picture.title and len(picture.data) > 0 and picture.spec(narrow=number % 2 == 1)
  assert pictures[0].svg.startswith("<svg")


def test_pairs_are_at_one_point_or_differ_in_one_key(folder):
  result = frames_of(folder)
  places = {info["label"]: frames.Place(info["group"], info["point"]) for info in result.comparison.infos}
  expected = {pair for pair in combinations(places, 2) if comparable(*(places[label] for label in pair))}
  lines = frames.of_quantity(result.pairs, quantity(folder, "test_loss"))
  assert set(zip(lines["first"], lines["second"], strict=True)) == expected
  # sync: 1 pair by workers; local: 3 by workers and 2 x 3 by period; between the two: 6
  assert len(expected) == 1 + 3 + 6 + 6 and ("sync, workers 2", "local, workers 4, period 1") not in expected
  assert len(result.pairs) == 16 * result.pairs.quantity.nunique()
  least = lines.loc[lines.p.idxmin()]
  assert least.p_holm == pytest.approx(16 * least.p)  # the correction is for the tested pairs only


def test_points_are_marked_by_tests_against_any_of_the_best(tmp_path):
  """Two points are equally good; a third is tested only against the second and does not differ significantly."""
  good = [rising(0.1, 0.5 + 0.02 * n, at, 0.99) for n, at in enumerate((0.97, 0.98, 0.99))]
  close = [rising(0.1, 0.5 + 0.02 * n, at, 0.99) for n, at in enumerate((0.975, 0.965, 0.985))]
  points = {"a": (1, 1), "b": (4, 4), "near b": (4, 8), "far": (1, 8), "bad": (4, 1), "twin": (1, 16)}
  bad = [rising(0.1, 0.12, 0.13 + 0.01 * n, 0.14) for n in range(3)]
  runs = {"a": good, "b": good, "near b": close, "far": bad, "bad": bad, "twin": close}  # twin: tested only against a
  keys = {"workers": [1, 4], "algorithm.period": [1, 4, 8, 16]}

  def marks(*labels):
    places = {}
    for label in labels:
      workers, period = points[label]
      places[label] = {"group": "local", "point": {"workers": workers, "algorithm.period": period}}
    path = tmp_path / str(len(labels))
    comparison(path, {label: runs[label] for label in labels}, places=places, grid=keys)
    return table_of(path).examples_to_target_mark.dropna().to_dict()

  first = [label for label in points if label != "twin"]
  assert marks(*first) == {"a": "best", "b": "best", "near b": "tied"}
  assert marks(*points) == {"a": "best", "b": "best", "near b": "tied", "twin": "tied"}
  assert marks("a", "near b") == {"a": "best"}  # they differ in two keys, so they are not tested
  assert {pair["summary"] for pair in tables.pair_tables(frames_of(tmp_path / "2"))} == {"no test"}


def test_frames_and_the_text_table_have_a_column_for_each_key(folder, tmp_path):
  result = frames_of(folder)
  table = result.table
  assert list(table.columns[:4]) == ["label", "group", "workers", "algorithm.period"]
  pivot = table[table.group == "local"].pivot(index="algorithm.period", columns="workers", values="test_loss")
  assert pivot.shape == (3, 2) and pivot.loc[4, 2] == pytest.approx(0.001, rel=0.05)
  assert table[table.group == "sync"]["algorithm.period"].isna().all()
  metrics = frames.metrics_frame(result.comparison)
  assert list(metrics.columns[:5]) == ["label", "seed", "group", "workers", "algorithm.period"]
  assert len(metrics) == 8 * 4 * 5
  head, _, first, *rest = [line.split() for line in page.table(folder).splitlines()]
  assert head[:3] == ["algorithm", "workers", "period"] and first[:3] == ["sync", "2", "-"]
  assert ["local", "4", "16"] in [line[:3] for line in rest]
  keys = {"workers": (2, 16), "algorithm.period": (1, 16), "network.message_seconds": (0.125, 0.0625)}
  path = grid(tmp_path, keys, noisy, groups=("local SGD", "post-local SGD of a long name"))
  lines = tables.text_lines(frames_of(path))  # a wide table keeps the start of each label
  assert {line[: tables.LABEL].strip() for line in lines[2:]} == {"local SGD", "post-local SGD.."}
