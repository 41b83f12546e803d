"""Virtual seconds, schedules of asynchronous and synchronous algorithms, and staleness in a report."""

import json
import re

import numpy as np
import pytest
from helpers.comparisons import Tags, edited, finding_of, rising, table_of, undrawn_page
from helpers.schedules import MESSAGE, SERVICE, VIRTUAL, WORKERS, events_of, tiles, total, virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.api import Arrivals
from ddl.events import lockstep
from ddl.events.barriers import asp, backup, bsp, psp, ssp
from ddl.events.record import save
from ddl.events.times import TIMES
from ddl.report import formats, reader, schedule
from ddl.report import page as report
from ddl.report.schedule import COMPUTING, EXCHANGING, LOST, UNKNOWN, WAITING, schedules, shares, spans

BARRIERS = st.sampled_from([asp(), bsp(), ssp(bound=1), psp(sample=1, bound=0)])


@settings(deadline=None, max_examples=25)
@given(BARRIERS, st.integers(0, 9), st.sampled_from([0.0, 0.2]), st.booleans(), st.sampled_from([0.0, 0.125, 2.0]))
def test_spans_cover_the_time_of_each_worker(barrier, seed, death_rate, lock_free, service):
  arrivals = Arrivals(blocks=int(lock_free))
  events = events_of(barrier, seed=seed, death_rate=death_rate, down_seconds=2.0, arrivals=arrivals, service=service)
  result, count = spans(events), len(events.worker)
  for worker in range(WORKERS):
    if (events.worker == worker).any():
      assert tiles(result, worker, events.released[events.worker == worker].max())
  np.testing.assert_allclose(total(result, EXCHANGING), count * (2 * MESSAGE + service))
  np.testing.assert_allclose(total(result, COMPUTING), (events.arrival - events.start - MESSAGE).sum())
  assert bool(total(result, LOST)) == bool(events.restarted.any())
  assert total(result, UNKNOWN) == 0 and not result.beneath.any()


def test_round_robin_has_one_active_worker_at_a_time():
  events = events_of(arrivals=Arrivals("round_robin"), visits=40)
  intervals = spans(events)
  at_work = total(intervals, COMPUTING) + total(intervals, EXCHANGING)
  np.testing.assert_allclose(at_work, events.released[-1])
  failing = spans(events_of(arrivals=Arrivals("round_robin"), visits=40, death_rate=0.3, down_seconds=5.0))
  busy = sum(total(failing, kind) for kind in (COMPUTING, EXCHANGING, LOST))
  np.testing.assert_allclose(busy, failing.end.max())


def test_dropped_workers_of_a_quorum_compute_until_the_round_ends():
  events = events_of(backup(spare=1), visits=30, death_rate=0.1, down_seconds=3.0)
  intervals = spans(events)
  for worker in range(WORKERS):
    assert tiles(intervals, worker, events.released[events.worker == worker].max())
  np.testing.assert_allclose(total(intervals, EXCHANGING), (~events.dropped).sum() * (2 * MESSAGE + SERVICE))
  assert total(intervals, LOST) > 3.0


def test_delayed_messages_are_beneath_the_steps():
  events = events_of(delay=1, period=2, step=10.0)
  intervals = spans(events)
  np.testing.assert_allclose(total(intervals, EXCHANGING, beneath=True), len(events.worker) * (2 * MESSAGE + SERVICE))
  assert set(intervals.kind[~intervals.beneath]) == {COMPUTING}  # the reply arrives during the first step
  assert tiles(intervals, 2, events.released[events.worker == 2].max())
  busy = spans(events_of(delay=1, service=2.0, death_rate=0.2, down_seconds=2.0))
  assert total(busy, UNKNOWN) > total(busy, COMPUTING) and total(busy, LOST) > 0 and total(busy, WAITING, True) > 0


def test_virtual_seconds_replace_measured_seconds_and_are_required(tmp_path):
  fast, slow = rising(0.1, 0.95, 0.96, 0.96), rising(0.1, 0.2, 0.3, 0.96)
  folder = virtual(tmp_path, {"easgd": [slow] * 3, "local_sgd": [fast] * 3})
  table = table_of(folder)
  assert "seconds_to_target" not in table and table.virtual_seconds_to_target["local_sgd"] == 2.5
  assert finding_of(folder)["Fastest in virtual time to 95 %"].startswith("local_sgd (2.50 s)")
  text = report.table(folder)
  assert "virtual s " in text and "2.50 s*" in text and f"{VIRTUAL}." in re.sub(r"\s+", " ", text)
  with (folder / "easgd/seed-0/metrics.jsonl").open("a") as file:
    file.write(json.dumps(rising(*[0.1] * 5)[4]) + "\n")
  with pytest.raises(ValueError, match=r"easgd \(seed 0\) .*virtual_seconds"):
    report.table(folder)


@pytest.mark.filterwarnings("error")
def test_short_and_unusual_schedules_give_no_warning(tmp_path):
  one, many = events_of(visits=1), events_of(visits=400, workers=40)
  late = many._replace(staleness=many.staleness * 50)
  events = {"one": one, "many": many, "late": late, "delayed": events_of(delay=1, service=1.0)}
  folder = virtual(tmp_path, {label: [rising(0.1, 0.96)] for label in events}, events)
  drawn = schedule.pictures(folder, reader.read(folder))
  assert [picture.name for picture in drawn] == ["schedule_one", "schedule_many", "schedule_late", "schedule_delayed"]
  assert "The first 16 of 40 workers are drawn." in drawn[1].caption
  assert all("schedule" in picture.alt.lower() and picture.spec() for picture in drawn)
  assert drawn[0].svg.startswith("<svg")
  for shown, picture in zip(schedules(folder, reader.read(folder)), drawn, strict=True):
    whole = shown.record.round.max() < schedule.ROUNDS
    assert ("The whole run." in picture.caption[0]) == whole == (shown.labels[0] in ("one", "delayed"))
    assert (schedule.end_of(shown) == shown.record.released.max()) == whole


def test_invalid_records_are_refused(tmp_path):
  folder = virtual(tmp_path, {"async_sgd": [rising(0.1, 0.96)]}, {"async_sgd": events_of()})
  record = folder / "async_sgd/seed-0/events.npz"
  record.write_text("not a record")
  with pytest.raises(ValueError, match=r"events\.npz"):
    schedules(folder, reader.read(folder))
  save(record, type(events_of())(*(array[:0] for array in events_of())))
  with pytest.raises(ValueError, match=r"events\.npz: the record is empty"):
    schedules(folder, reader.read(folder))


EXCHANGE = 0.5  # seconds


def exchanges_every(period, delay=0, offset=0):
  launched = lambda step: step >= offset + period and (step - offset) % period == 0  # noqa: E731
  return lockstep.ExchangeSeconds(launched, delay, EXCHANGE)


def record(*exchanges, name="lognormal", overlap=True, local=None, present=False, seed=0, **changes):
  times = TIMES[name](workers=WORKERS, seed=seed, **{"seconds": 1.0} | changes)
  settings = {"workers": WORKERS, "steps": 24, "round_steps": 3, "times": times, "exchanges": exchanges}
  settings |= {"local_seconds": local, "overlap": overlap, "present": present}
  return lockstep.stack(lockstep.walk(**settings)), lockstep.finish(**settings)


EXCHANGES = st.builds(  # an offset may be negative only with a delay
  lambda period, delay, offset: exchanges_every(period, delay, max(offset, -period * bool(delay))),
  st.integers(1, 4), st.just(0) | st.integers(1, 7), st.integers(-4, 5),
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(
  st.lists(EXCHANGES, min_size=1, max_size=3), st.booleans(), st.sampled_from([0, 0.2]), st.sampled_from([None, 0.3])
)
def test_lockstep_spans_cover_the_time_of_each_worker(exchanges, overlap, death_rate, local):
  how = {"jitter": 0.4, "death_rate": death_rate, "down_seconds": 3.0}
  result, finished = record(*exchanges, overlap=overlap, local=local, **how)
  drawn = spans(result)
  np.testing.assert_array_equal(result.released.max(axis=1), finished)
  for worker in range(WORKERS):
    assert tiles(drawn, worker, result.released[-1, worker])
  np.testing.assert_allclose(total(drawn, COMPUTING), (result.done - result.begun - result.lost).sum())
  np.testing.assert_allclose(total(drawn, LOST), result.lost.sum())
  sent = np.concatenate([result.launched, result.met], axis=1)
  exchanged = total(drawn, EXCHANGING) + total(drawn, EXCHANGING, beneath=True)
  np.testing.assert_allclose(exchanged, WORKERS * np.nansum(sent[..., 1] - sent[..., 0]))
  sent = sent[np.isfinite(sent[..., 0])]
  sent = sent[sent[:, 0].argsort()]
  np.testing.assert_array_less(sent[:-1, 1], sent[1:, 0] + 1e-9)  # a link carries one message at a time
  assert drawn.beneath.any() == (overlap and np.isfinite(result.launched).any())


@settings(deadline=None, max_examples=15)
@given(st.lists(EXCHANGES, min_size=1, max_size=2), st.booleans(), st.integers(0, 99))
def test_time_of_an_absent_worker_is_lost(exchanges, overlap, seed):
  how = {"jitter": 0.4, "death_rate": 0.1, "down_seconds": 3.0}
  result, finished = record(*exchanges, overlap=overlap, seed=seed, present=True, **how)
  drawn = spans(result)
  absent = np.isnan(result.free)
  np.testing.assert_array_equal(np.nanmax(result.released, axis=1), finished)
  for worker in range(WORKERS):
    assert tiles(drawn, worker, finished.max() if absent[-1, worker] else result.released[-1, worker])
    assert absent[:, worker].any() <= (drawn.kind[drawn.worker == worker] == LOST).any()


def test_equal_workers_without_a_delay_wait_only_for_a_slow_worker():
  drawn = spans(record(exchanges_every(3), name="constant")[0])
  assert total(drawn, WAITING) == 0 and not drawn.beneath.any()
  assert total(drawn, COMPUTING) == 24 * WORKERS and total(drawn, EXCHANGING) == 8 * WORKERS * EXCHANGE
  drawn = spans(record(exchanges_every(3), name="constant", slow=(1.0,) * (WORKERS - 1) + (3.0,))[0])
  assert total(drawn, WAITING) == 24 * 2 * (WORKERS - 1)
  assert WORKERS - 1 not in set(drawn.worker[drawn.kind == WAITING])


def test_a_delay_hides_messages_beneath_the_steps():
  drawn = spans(record(exchanges_every(3, 1), name="constant")[0])
  assert set(drawn.kind[~drawn.beneath]) == {COMPUTING}
  assert total(drawn, EXCHANGING, beneath=True) == 7 * WORKERS * EXCHANGE
  blocking = spans(record(exchanges_every(3, 1), name="constant", overlap=False)[0])
  assert total(blocking, EXCHANGING) == 7 * WORKERS * EXCHANGE and not blocking.beneath.any()


@pytest.mark.filterwarnings("error")
def test_page_has_each_distinct_schedule_once(tmp_path):
  same, other = events_of(), events_of(backup(spare=1), death_rate=0.2, down_seconds=2.0)
  labels = ("sync_sgd", "sharded", "late", "async_sgd", "async_msgd", "backup")
  runs = dict.fromkeys(labels, [rising(0.1, 0.5, 0.96)] * 2)
  folder = virtual(tmp_path, runs, {"async_sgd": same, "async_msgd": same, "backup": other})
  with edited(folder) as info:
    for entry, delay in zip(info["algorithms"], (0, 0, 1), strict=False):
      entry["lockstep"] = f"{entry['runs'][0]}/lockstep.npz"
      lockstep.save(folder / entry["lockstep"], record(exchanges_every(3, delay))[0])
  comparison = reader.read(folder)
  groups = [["sync_sgd", "sharded"], ["late"], ["async_sgd", "async_msgd"], ["backup"]]
  shown = schedules(folder, comparison)
  assert [item.labels for item in shown] == groups
  assert schedule.end_of(shown[0]) == shown[0].record.released[3 * schedule.ROUNDS - 1].max()
  pictures = schedule.pictures(folder, comparison)
  assert all(item.title.startswith(f"{' and '.join(group)}: waiting ") and item.spec()
             for item, group in zip(pictures, groups, strict=True))  # fmt: skip
  assert pictures[0].caption != pictures[1].caption
  visits = same.staleness  # asp drops no messages
  high = min(value for value in visits if (visits <= value).mean() >= 0.99)
  assert f"{visits.mean():.3g}" in pictures[2].title and pictures[2].title.endswith(f" {high}")
  text = undrawn_page(folder)
  page = Tags(text)
  assert not page.open
  figures = [attrs["id"] for tag, attrs in page.tags if tag == "figure"]
  metrics = ["accuracy_vs_examples", "accuracy_vs_bytes", "accuracy_vs_virtual_seconds", "loss_vs_examples"]
  assert figures == [*metrics, *(f"schedule_{group[0]}" for group in groups)]
  assert sorted(path.stem for path in folder.glob("figures/*.png")) == sorted(figures)
  assert f"Dropped messages: {other.dropped.sum()}." in text and f"Failures: {other.restarted.sum()}." in text
  (folder / info["algorithms"][0]["lockstep"]).write_text("not a record")
  with pytest.raises(ValueError, match=r"lockstep\.npz"):
    schedules(folder, comparison)


def test_shares_add_up_to_one_and_only_exact_ones_are_shown_as_0_or_100_percent():
  result = shares(spans(events_of(service=0.5, death_rate=0.2, down_seconds=2.0)))
  assert sum(result.values()) == pytest.approx(1) and len(result) == 4
  assert list(result.values()) == sorted(result.values(), reverse=True)
  reported = {0.0: "0 %", 1e-5: "under 0.1 %", 0.0004: "under 0.1 %", 0.25: "25.0 %", 0.9994: "99.9 %"}
  reported |= {0.99999: "over 99.9 %", 1.0: "100 %"}
  assert {part: formats.share(part) for part in reported} == reported
