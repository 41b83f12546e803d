"""The settings in a comparison's report: shared ones once, others by label, and the origin of learning rates."""

from helpers.comparisons import comparison, rising, undrawn_page

from ddl.report import settings as settings_table

COMMON = {
  "batch": 16, "workers": 8, "steps": 400, "eval_every": 10, "model": {"name": "mlp", "hidden": [64, 32]},
  "schedule": {"name": "constant"}, "network": {"message_seconds": 0.001, "exchange_seconds": None},
}  # fmt: skip


def entry(label, rate, hyper=None, momentum=0.9, tuned=None, virtual=None, **settings):
  optimizer = {"name": "sgd", "nesterov": False, "momentum": momentum, "learning_rate": rate}
  settings = COMMON | {"optimizer": optimizer} | settings
  return {"label": label, "hyper": hyper or {}, "settings": settings, "tuned": tuned, "virtual": virtual}


def info(*entries):
  return {"algorithms": list(entries), "seeds": [0, 1]}


def test_shared_settings_and_settings_by_label():
  rows = settings_table.settings(info(entry("a", 0.3), entry("b", 0.1, {"period": 10, "alpha": 0.1125}, momentum=0.0)))
  assert rows.shared == {
    "model": "mlp, hidden (64, 32)", "workers": "8", "batch": "16 examples per worker and step",
    "steps": "400 per worker, with a server or peers on average", "examples": "51,200 summed over all workers",
    "eval every": "10 steps between evaluations", "optimizer": "sgd, nesterov no", "schedule": "constant",
    "seeds": "0, 1",
  }  # fmt: skip
  columns = {"learning rate": ["0.3", "0.1"], "hyperparameters": ["none", "period 10, alpha 0.1125"]}
  assert list(rows.columns.items()) == [*columns.items(), ("momentum of optimizer", ["0.9", "0"])]
  assert rows.note == "The learning rates are from the config, not from a sweep (--tuned)."


def test_settings_that_no_label_changes_are_hidden():
  unset = settings_table.settings(info(*(entry(label, 0.3, **settings_table.UNSET) for label in "ab")))
  assert not {"ema", "rate scaling", "base batch", "outer schedule"} & {*unset.shared, *unset.columns}
  scaled = {"rate_scaling": "linear", "base_batch": 64}
  one = settings_table.settings(info(entry("a", 0.3, **settings_table.UNSET), entry("b", 0.3, ema=0.9, **scaled)))
  assert one.columns["rate scaling"] == ["none", "linear"] and one.columns["ema"] == ["0", "0.9"]


def test_the_origin_of_learning_rates():
  sweep = {"keys": ["optimizer.learning_rate"], "trials": 6}
  both = {"keys": ["optimizer.learning_rate", "algorithm.period"], "trials": 9}
  manual = {"keys": ["algorithm.period"], "trials": 0}
  entries = [entry(label, 0.1, tuned=tuned) for label, tuned in zip("abcd", (None, sweep, both, manual), strict=True)]
  mixed = settings_table.settings(info(entry("slow", 0.3), *entries))
  assert list(mixed.columns)[:2] == ["learning rate", "learning rate from"] and mixed.note == ""
  config, *swept = "the config, not from a sweep (--tuned)", "a sweep of 6 trials", "a sweep of 9 trials"
  wanted = [config, config, swept[0], f"{swept[1]}, which also tuned period", config]
  assert mixed.columns["learning rate from"] == wanted
  alike = settings_table.settings(info(entry("a", 0.3, tuned=sweep), entry("b", 0.1, tuned=sweep)))
  assert alike.note == "The learning rates are from a sweep of 6 trials." and "learning rate from" not in alike.columns


def test_clock_settings_are_shown_only_for_virtual_or_predicted_seconds():
  network = {"message_seconds": 0.001, "exchange_seconds": 0.012}
  entries = [entry("a", 0.3, virtual="slow"), entry("b", 0.3, virtual="fast", network=network)]
  rows = settings_table.settings(info(*entries))
  assert rows.shared["network"] == "message seconds 0.001"
  assert rows.columns["exchange seconds of network"] == ["not set", "0.012"]
  measured = info(*(entry | {"virtual": None} for entry in entries))
  assert "network" in settings_table.settings(measured | {"clusters": [{}]}).shared
  assert "network" not in settings_table.settings(measured).shared


def test_workers_and_batch_that_differ_are_settings_by_label():
  rows = settings_table.settings(info(entry("a", 0.3), entry("b", 0.3, workers=1, batch=128)))
  assert rows.columns["workers"] == ["8", "1"]
  assert rows.columns["batch (examples per worker and step)"] == ["16", "128"]
  assert rows.shared["examples"] == "51,200 summed over all workers"
  assert not {"workers", "batch"} & set(rows.shared)


def test_page_shows_no_unset_keys(tmp_path):
  config = {"common": {"times.seconds": None, "times.name": "lognormal"}, "algorithms": {"a": {"network.blocks": None}}}
  assert settings_table.without_unset(config) == {"common": {"times.name": "lognormal"}, "algorithms": {"a": {}}}
  text = undrawn_page(comparison(tmp_path, {"easgd": [rising(0.1, 0.96)]}, config=config))
  assert "&#34;lognormal&#34;" in text and "&#34;times.seconds&#34;: null" not in text
