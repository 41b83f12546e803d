"""The schedule of a synchronous algorithm beside asynchronous ones: the record, its spans, its picture."""

import json

import jax
import numpy as np
import pytest
from helpers.comparisons import rising, undrawn_page
from helpers.schedules import WORKERS, events_of, tiles, total, virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.config import default_experiment
from ddl.engine import traffic
from ddl.events import lockstep
from ddl.events.times import TIMES
from ddl.report import formats, reader
from ddl.report.figures import schedule
from ddl.report.figures.schedule import COMPUTING, EXCHANGING, LOST, WAITING, schedules, spans
from ddl.run import virtual_time
from ddl.run.build import build

EXCHANGE = 0.5  # seconds


def every(period, delay=0, offset=0):
  launched = lambda step: step >= offset + period and (step - offset) % period == 0  # noqa: E731
  return lockstep.ExchangeSeconds(launched, delay, EXCHANGE)


def record(*exchanges, name="lognormal", overlap=True, local=None, elastic=False, seed=0, **changes):
  times = TIMES[name](workers=WORKERS, seed=seed, **{"seconds": 1.0} | changes)
  settings = {"workers": WORKERS, "steps": 24, "round_steps": 3, "times": times, "exchanges": exchanges}
  settings |= {"local_seconds": local, "overlap": overlap, "present": elastic}
  return lockstep.stack(lockstep.walk(**settings)), lockstep.finish(**settings)


some = st.integers(1, 4).flatmap(
  lambda period: (
    st.builds(every, st.just(period), st.just(0), st.integers(0, 5))
    | st.builds(every, st.just(period), st.integers(1, 7), st.integers(-period, 5))
  )
)


@settings(deadline=None, max_examples=60)
@given(st.lists(some, min_size=1, max_size=3), st.booleans(), st.sampled_from([0, 0.2]), st.sampled_from([None, 0.3]))
def test_spans_tile_the_time_of_each_worker(exchanges, overlap, death_rate, local):
  found, finished = record(
    *exchanges, overlap=overlap, local=local, jitter=0.4, death_rate=death_rate, down_seconds=3.0
  )  # fmt: skip
  drawn = spans(found)
  np.testing.assert_array_equal(found.released.max(axis=1), finished)
  for worker in range(WORKERS):
    assert tiles(drawn, worker, found.released[-1, worker])
  np.testing.assert_allclose(total(drawn, COMPUTING), (found.done - found.begun - found.lost).sum())
  np.testing.assert_allclose(total(drawn, LOST), found.lost.sum())
  sent = np.concatenate([found.launched, found.met], axis=1)
  exchanged = total(drawn, EXCHANGING) + total(drawn, EXCHANGING, beneath=True)
  np.testing.assert_allclose(exchanged, WORKERS * np.nansum(sent[..., 1] - sent[..., 0]))
  sent = sent[np.isfinite(sent[..., 0])]
  np.testing.assert_array_less(sent[sent[:, 0].argsort()][:-1, 1], sent[sent[:, 0].argsort()][1:, 0] + 1e-9)  # one link
  assert drawn.beneath.any() == (overlap and np.isfinite(found.launched).any())


@settings(deadline=None, max_examples=20)
@given(st.lists(some, min_size=1, max_size=2), st.booleans(), st.integers(0, 99))
def test_the_time_of_an_absent_worker_is_lost(exchanges, overlap, seed):
  found, finished = record(
    *exchanges, overlap=overlap, jitter=0.4, death_rate=0.1, down_seconds=3.0, seed=seed, elastic=True
  )  # fmt: skip
  drawn = spans(found)
  absent = np.isnan(found.free)
  np.testing.assert_array_equal(np.nanmax(found.released, axis=1), finished)
  for worker in range(WORKERS):
    assert tiles(drawn, worker, finished.max() if absent[-1, worker] else found.released[-1, worker])
    assert absent[:, worker].any() <= (drawn.kind[drawn.worker == worker] == LOST).any()


def test_without_a_delay_equal_workers_only_wait_for_the_exchange():
  drawn = spans(record(every(3), name="constant")[0])
  assert total(drawn, WAITING) == 0 and not drawn.beneath.any()
  assert total(drawn, COMPUTING) == 24 * WORKERS and total(drawn, EXCHANGING) == 8 * WORKERS * EXCHANGE


def test_a_slow_worker_keeps_the_others_waiting():
  found, _ = record(every(3), name="constant", slow=(1.0,) * (WORKERS - 1) + (3.0,))
  drawn = spans(found)
  assert (
    total(drawn, WAITING) == 24 * 2 * (WORKERS - 1) and not (drawn.worker[drawn.kind == WAITING] == WORKERS - 1).any()
  )


def test_a_delay_hides_the_message_beneath_the_steps():
  drawn = spans(record(every(3, 1), name="constant")[0])
  assert (
    set(drawn.kind[~drawn.beneath]) == {COMPUTING} and total(drawn, EXCHANGING, beneath=True) == 7 * WORKERS * EXCHANGE
  )
  apart = spans(record(every(3, 1), name="constant", overlap=False)[0])
  assert total(apart, EXCHANGING) == 7 * WORKERS * EXCHANGE and not apart.beneath.any()


def test_the_record_is_of_the_configs_clock(tmp_path):
  easgd, network = {"name": "easgd", "period": 4}, {"message_seconds": 0.01}
  config = default_experiment(algorithm=easgd, workers=4, steps=400, network=network)
  experiment = build(config)
  algorithm, params = experiment.algorithm, jax.eval_shape(experiment.model.init, jax.random.key(0))[0]
  charged = virtual_time.charges(config, traffic.of(algorithm, params, 4))
  assert charged[:2] == (None, (0.04,))
  found = virtual_time.lockstep_record(config, algorithm, charged)
  assert len(found.free) == virtual_time.ROUNDS * 4
  clock = virtual_time.lockstep_seconds(config, algorithm, charged)
  np.testing.assert_array_equal(found.released.max(axis=1), [clock(step) for step in range(1, len(found.free) + 1)])
  assert "all-reduce of all workers 40 ms" in virtual_time.describe(config)
  config = config.changed({"network": {"exchange_seconds": 0.05}})
  assert virtual_time.charges(config, traffic.of(algorithm, params, 4))[:2] == (None, (0.05,))
  assert "exchange of all workers 50 ms" in virtual_time.describe(config)
  config = config.changed({"times": {"slow": (1.0, 2.5, 2.5, 1.0)}})
  assert "2 of 4 workers taking 2.5 times as long" in virtual_time.describe(config)
  lockstep.save(tmp_path / "record", found)
  for kept, there in zip(lockstep.load(tmp_path / "record"), found, strict=True):
    np.testing.assert_array_equal(kept, there)


@pytest.mark.filterwarnings("error")
def test_the_page_draws_it_beside_the_asynchronous_ones(tmp_path):
  runs = dict.fromkeys(("sync_sgd", "sharded", "late", "async_sgd"), [rising(0.1, 0.5, 0.96)] * 2)
  folder = virtual(tmp_path, runs, {"async_sgd": events_of()})
  info = json.loads((folder / "comparison.json").read_text())
  for each, delay in zip(info["algorithms"], (0, 0, 1), strict=False):
    each["lockstep"] = f"{each['runs'][0]}/lockstep.npz"
    lockstep.save(folder / each["lockstep"], record(every(3, delay))[0])
  (folder / "comparison.json").write_text(json.dumps(info))
  comparison = reader.read(folder)
  assert [each.labels for each in schedules(folder, comparison)] == [["sync_sgd", "sharded"], ["late"], ["async_sgd"]]
  sync, late, _ = schedule.pictures(folder, comparison)
  assert sync.title.startswith("sync_sgd and sharded (waiting ") and late.title.startswith("late (waiting ")
  assert sync.caption != late.caption
  assert all(picture.svg.startswith("<?xml") for picture in (sync, late))
  shown, *_ = schedules(folder, comparison)
  assert schedule.end_of(shown) == shown.record.released[3 * schedule.ROUNDS - 1].max()
  text = undrawn_page(folder)
  assert text.count('<figure id="schedule_') == 3 and (folder / "figures/schedule_late.png").is_file()
  (folder / info["algorithms"][0]["lockstep"]).write_text("not a record")
  with pytest.raises(ValueError, match=r"lockstep\.npz: not a record of steps"):
    schedules(folder, comparison)


def test_a_share_reads_as_all_or_nothing_only_where_it_is():
  told = {0.0: "0 %", 1e-5: "under 0.1 %", 0.0004: "under 0.1 %", 0.25: "25.0 %", 0.9994: "99.9 %"}
  told |= {0.99999: "over 99.9 %", 1.0: "100 %"}
  assert {part: formats.share(part) for part in told} == told
