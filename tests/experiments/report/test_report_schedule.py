"""Virtual seconds, schedules and staleness in a comparison's report."""

import json
import re

import numpy as np
import pytest
from helpers.comparisons import Tags, comparison, finding_of, rising, rows_of, undrawn_page
from helpers.schedules import MESSAGE, SERVICE, VIRTUAL, WORKERS, events_of, tiles, total, virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.api import Arrivals
from ddl.events.barriers import asp, backup, bsp, psp, ssp
from ddl.events.record import save
from ddl.report import page as report
from ddl.report import reader
from ddl.report.figures import schedule
from ddl.report.figures.schedule import COMPUTING, EXCHANGING, LOST, UNKNOWN, WAITING, schedules, shares, spans

BARRIERS = st.sampled_from([asp(), bsp(), ssp(bound=1), psp(sample=1, bound=0)])


@settings(deadline=None, max_examples=40)
@given(BARRIERS, st.integers(0, 9), st.sampled_from([0.0, 0.2]), st.booleans(), st.sampled_from([0.0, 0.125, 2.0]))
def test_spans_tile_the_time_of_each_worker(barrier, seed, death_rate, lock_free, service):
  arrivals = Arrivals(blocks=int(lock_free))
  events = events_of(barrier, seed=seed, death_rate=death_rate, down_seconds=2.0, arrivals=arrivals, service=service)
  found, count = spans(events), len(events.worker)
  for worker in range(WORKERS):
    if (events.worker == worker).any():
      assert tiles(found, worker, events.released[events.worker == worker].max())
  np.testing.assert_allclose(total(found, EXCHANGING), count * (2 * MESSAGE + service))
  np.testing.assert_allclose(total(found, COMPUTING), (events.arrival - events.start - MESSAGE).sum())
  assert bool(total(found, LOST)) == bool(events.restarted.any())
  assert total(found, UNKNOWN) == 0 and not found.beneath.any()


def test_a_lone_worker_never_waits_and_a_lock_free_server_keeps_nobody_waiting():
  for alone in (events_of(workers=1), events_of(arrivals=Arrivals(blocks=1), service=2.0)):
    assert list(spans(alone).kind) == [COMPUTING, EXCHANGING] * len(alone.worker)  # an exchange is one span
  assert total(spans(events_of(service=2.0)), WAITING) > 10


def test_in_a_round_robin_all_but_one_wait():
  events = events_of(arrivals=Arrivals("round_robin"), visits=40)
  found = spans(events)
  at_work = total(found, COMPUTING) + total(found, EXCHANGING)
  np.testing.assert_allclose(at_work, events.released[-1])
  dead = spans(events_of(arrivals=Arrivals("round_robin"), visits=40, death_rate=0.3, down_seconds=5.0))
  np.testing.assert_allclose(total(dead, COMPUTING) + total(dead, EXCHANGING) + total(dead, LOST), dead.end.max())


def test_in_a_quorum_those_dropped_compute_until_the_round_is_closed():
  events = events_of(backup(spare=1), visits=30, death_rate=0.1, down_seconds=3.0)
  found = spans(events)
  for worker in range(WORKERS):
    assert tiles(found, worker, events.released[events.worker == worker].max())
  np.testing.assert_allclose(total(found, EXCHANGING), (~events.dropped).sum() * (2 * MESSAGE + SERVICE))
  assert total(found, LOST) > 3.0


def test_a_message_sent_before_the_steps_is_beneath_them():
  events = events_of(delay=1, period=2, step=10.0)
  found = spans(events)
  np.testing.assert_allclose(total(found, EXCHANGING, beneath=True), len(events.worker) * (2 * MESSAGE + SERVICE))
  assert set(found.kind[~found.beneath]) == {COMPUTING}  # the reply is back before the first step is done
  assert tiles(found, 2, events.released[events.worker == 2].max())
  busy = spans(events_of(delay=1, service=2.0, death_rate=0.2, down_seconds=2.0))
  assert total(busy, UNKNOWN) > total(busy, COMPUTING) and total(busy, LOST) > 0 and total(busy, WAITING, True) > 0


def test_shares_add_up_to_the_whole():
  found = shares(spans(events_of(service=0.5, death_rate=0.2, down_seconds=2.0)))
  assert sum(found.values()) == pytest.approx(1) and len(found) == 4
  assert list(found.values()) == sorted(found.values(), reverse=True)


def test_virtual_seconds_take_the_place_of_measured_ones(tmp_path):
  fast, slow = rising(0.1, 0.95, 0.96, 0.96), rising(0.1, 0.2, 0.3, 0.96)
  folder = virtual(tmp_path, {"easgd": [slow] * 3, "local_sgd": [fast] * 3})
  costs = rows_of(folder)["local_sgd"].estimates
  assert "seconds" not in costs and costs["virtual_seconds"].mean == 2.5
  assert finding_of(folder)["Soonest in virtual time to 95 %"].startswith("local_sgd (2.50 s)")
  text = report.table(folder)
  assert "virtual s " in text and "2.50 s*" in text and f"{VIRTUAL}." in re.sub(r"\s+", " ", text)
  alone = virtual(tmp_path / "alone", {"local_sgd": [fast] * 3})
  assert "2.50 s of virtual time" in finding_of(alone)[""]


def test_a_line_without_virtual_seconds_is_refused(tmp_path):
  folder = virtual(tmp_path, {"easgd": [rising(0.1, 0.96)]})
  with (folder / "easgd/seed-0/metrics.jsonl").open("a") as file:
    file.write(json.dumps(rising(0.1, 0.2, 0.3)[2]) + "\n")
  with pytest.raises(ValueError, match=r"easgd, seed 0 .*virtual_seconds"):
    report.table(folder)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_an_interval_over_two_seeds_comes_with_a_warning(tmp_path, seeds):
  told = report.table(comparison(tmp_path, {"easgd": [rising(0.1, 0.5, 0.96)] * seeds}))
  assert ("has little meaning" in re.sub(r"\s+", " ", told)) == (seeds == 2)
  assert ("One seed" in told) == (seeds == 1)


def test_the_page_draws_each_schedule_once(tmp_path):
  lines = rising(0.1, 0.5, 0.96)
  same, other = events_of(), events_of(backup(spare=1), death_rate=0.2, down_seconds=2.0)
  runs = dict.fromkeys(("sync_sgd", "async_sgd", "async_msgd", "backup"), [lines] * 2)
  folder = virtual(tmp_path, runs, {"async_sgd": same, "async_msgd": same, "backup": other})
  found = schedules(folder, reader.read(folder))
  assert [each.labels for each in found] == [["async_sgd", "async_msgd"], ["backup"]]
  text = undrawn_page(folder)
  page = Tags(text)
  assert not page.open
  figures = [attrs["id"] for tag, attrs in page.found if tag == "figure"]
  metrics = ["accuracy_vs_examples", "accuracy_vs_virtual_seconds", "accuracy_vs_bytes", "loss_vs_examples"]
  assert figures == [*metrics, "schedule_async_sgd", "schedule_backup"]
  assert sorted(path.stem for path in folder.glob("figures/*.png")) == sorted(figures)
  visits = same.staleness  # asp drops none
  high = min(value for value in visits if (visits <= value).mean() >= 0.99)
  assert f"async_sgd and async_msgd (staleness: mean {visits.mean():.3g}, 99th percentile {high})" in text
  assert f"Dropped messages: {other.dropped.sum()}." in text and f"Failures: {other.restarted.sum()}." in text


@pytest.mark.filterwarnings("error")
def test_odd_schedules_are_drawn_without_a_warning(tmp_path):
  one, many = events_of(visits=1), events_of(visits=400, workers=40)
  late = many._replace(staleness=many.staleness * 50)
  folder = virtual(
    tmp_path,
    {label: [rising(0.1, 0.96)] for label in ("one", "many", "late", "delayed")},
    {"one": one, "many": many, "late": late, "delayed": events_of(delay=1, service=1.0)},
  )
  drawn = schedule.pictures(folder, reader.read(folder))
  assert [picture.name for picture in drawn] == ["schedule_one", "schedule_many", "schedule_late", "schedule_delayed"]
  assert "The first 16 of 40 workers are drawn." in drawn[1].caption
  assert all("schedule" in picture.alt.lower() and picture.svg.startswith("<?xml") for picture in drawn)


@pytest.mark.parametrize("turns", [1, 5, 30])
def test_a_short_run_is_shown_whole(tmp_path, turns):
  folder = virtual(tmp_path, {"async_sgd": [rising(0.1, 0.96)]}, {"async_sgd": events_of(visits=turns * WORKERS)})
  (shown,) = schedules(folder, reader.read(folder))
  (drawn,) = schedule.pictures(folder, reader.read(folder))
  whole = shown.record.round.max() < schedule.ROUNDS
  assert whole == (turns < 30) and ("The whole run." in drawn.caption[0]) == whole
  assert (schedule.end_of(shown) == shown.record.released.max()) == whole


def test_bad_records_are_refused(tmp_path):
  folder = virtual(tmp_path, {"async_sgd": [rising(0.1, 0.96)]}, {"async_sgd": events_of()})
  record = folder / "async_sgd/seed-0/events.npz"
  record.write_text("not a record")
  with pytest.raises(ValueError, match=r"events\.npz: not a record of events"):
    schedules(folder, reader.read(folder))
  save(record, type(events_of())(*(array[:0] for array in events_of())))
  with pytest.raises(ValueError, match=r"events\.npz: the record has no events"):
    schedules(folder, reader.read(folder))
