"""The settings in a comparison's report: those that differ, by label, and the origin of learning rates."""

from helpers.comparisons import comparison, rising, undrawn_page

from ddl.report import settings as settings_table

COMMON = {
  "batch": 16, "workers": 8, "steps": 400, "eval_every": 10, "model": {"name": "mlp", "hidden": [64, 32]},
  "schedule": {"name": "constant"}, "network": {"message_seconds": 0.001, "exchange_seconds": None},
}  # fmt: skip


def entry(label, rate, hyper=None, momentum=0.9, tuned=None, **settings):
  optimizer = {"name": "sgd", "nesterov": False, "momentum": momentum, "learning_rate": rate}
  settings = COMMON | {"optimizer": optimizer} | settings
  return {"label": label, "hyper": hyper or {}, "settings": settings, "tuned": tuned}


def info(*entries):
  return {"algorithms": list(entries)}


def test_settings_that_differ_are_columns():
  entries = entry("a", 0.3), entry("b", 0.1, {"period": 10, "alpha": 0.1125}, momentum=0.0, workers=1, batch=128)
  columns, note = settings_table.settings(info(*entries))
  wanted = {"learning rate": ["0.3", "0.1"], "hyperparameters": ["none", "period 10, alpha 0.1125"]}
  wanted |= {"batch": ["16", "128"], "workers": ["8", "1"], "momentum of optimizer": ["0.9", "0"]}
  assert list(columns.items()) == list(wanted.items())
  assert note == "The learning rates are from the config, not from a sweep (--tuned)."
  network = {"message_seconds": 0.001, "exchange_seconds": 0.012}
  columns, _ = settings_table.settings(info(entry("a", 0.3), entry("b", 0.3, network=network)))
  assert columns["exchange seconds of network"] == ["not set", "0.012"]


def test_the_origin_of_learning_rates():
  sweep = {"keys": ["optimizer.learning_rate"], "trials": 6}
  both = {"keys": ["optimizer.learning_rate", "algorithm.period"], "trials": 9}
  manual = {"keys": ["algorithm.period"], "trials": 0}
  entries = [entry(label, 0.1, tuned=tuned) for label, tuned in zip("abcd", (None, sweep, both, manual), strict=True)]
  mixed, note = settings_table.settings(info(entry("slow", 0.3), *entries))
  assert list(mixed)[:2] == ["learning rate", "learning rate from"] and note == ""
  config, *swept = "the config, not from a sweep (--tuned)", "a sweep of 6 trials", "a sweep of 9 trials"
  wanted = [config, config, swept[0], f"{swept[1]}, which also tuned period", config]
  assert mixed["learning rate from"] == wanted
  alike, note = settings_table.settings(info(entry("a", 0.3, tuned=sweep), entry("b", 0.1, tuned=sweep)))
  assert note == "The learning rates are from a sweep of 6 trials." and "learning rate from" not in alike


def test_page_shows_no_unset_keys(tmp_path):
  config = {"common": {"times.seconds": None, "times.name": "lognormal"}, "algorithms": {"a": {"network.blocks": None}}}
  assert settings_table.without_unset(config) == {"common": {"times.name": "lognormal"}, "algorithms": {"a": {}}}
  text = undrawn_page(comparison(tmp_path, {"easgd": [rising(0.1, 0.96)]}, config=config))
  assert "&#34;lognormal&#34;" in text and "&#34;times.seconds&#34;: null" not in text
