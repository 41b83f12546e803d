"""The comparison of sockets with Ray's calls starts Ray itself, so no other test of this file may have started it."""

import pytest

from experiments.bench import server_exchange


@pytest.mark.slow
def test_sockets_are_compared_with_calls_of_ray(monkeypatch, capsys):
  pytest.importorskip("ray")
  monkeypatch.setattr(server_exchange, "MEGABYTES", (0.1,))
  monkeypatch.setattr(server_exchange, "TURNS", 1)
  server_exchange.main()
  megabytes, *rates = map(float, capsys.readouterr().out.splitlines()[-1].split())
  assert megabytes == 0.1 and all(rate > 0 for rate in rates) and len(rates) == 4
