"""What each process of a group hears of the end of another. The processes are threads here, one with a dead socket."""

import socket
import threading
import time

import pytest

from ddl import hosts
from ddl.hosts import watch


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
  monkeypatch.setattr(watch, "EVERY", 0.05)


class Told:
  """What a process is told."""

  def __init__(self):
    self.text, self._there = "", threading.Event()

  def __call__(self, text):
    self.text = text
    self._there.set()

  def within(self, seconds):
    return self.text if self._there.wait(seconds) else None


@pytest.fixture
def group():
  """The watches of three processes, and what each is told."""
  told = [Told() for _ in range(3)]
  server = watch.listen("127.0.0.1")
  made = [watch.serve(server, 3, "secret", 0.6, told[0])]
  made += [watch.join(server.getsockname(), rank, 3, "secret", 0.6, told[rank]) for rank in (1, 2)]
  time.sleep(0.2)
  yield made, told, server.getsockname()
  for each in made:
    each.close()


def test_nobody_is_told_anything_while_all_are_there_and_when_they_end_in_order(group):
  made, told, _ = group
  time.sleep(0.8)
  for each in reversed(made):
    each.close()
  assert [each.within(0.2) for each in told] == [None] * 3


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_a_silence_that_is_never_noticed_is_refused(seconds):
  for start in (
    lambda: hosts.join(60.0, seconds),
    lambda: watch.Watch(seconds, print, lambda _: ""),
  ):
    with pytest.raises(ValueError, match="peer_timeout must be in"):
      start()
  with pytest.raises(ValueError, match="join_timeout must be in"):
    hosts.join(seconds, 30.0)


@pytest.mark.parametrize("rank", [1, 2])
def test_one_that_ends_is_told_to_all_others(rank):
  told = [Told() for _ in range(3)]
  server = watch.listen("127.0.0.1")
  address = server.getsockname()
  made = [watch.serve(server, 3, "secret", 30.0, told[0])]
  made.append(watch.join(address, 3 - rank, 3, "secret", 30.0, told[3 - rank]))
  with socket.create_connection(address) as dies:
    dies.sendall(b'{"rank": %d, "secret": "secret"}\n' % rank)
    time.sleep(0.2)
  expected = f"process {rank} of 3 has ended"
  assert told[0].within(2) == told[3 - rank].within(2) == expected
  for each in made:
    each.close()


def test_one_that_is_silent_is_told_to_all_others(group):
  """As one that is stopped, or cut off: its connection stays."""
  _, told, address = group
  with socket.create_connection(address) as silent:
    silent.sendall(b'{"rank": 5, "secret": "secret"}\n')
    assert (
      told[0].within(3) == told[1].within(1) == told[2].within(1) == "process 5 of 3 has not been heard of for 0.6 s"
    )


def test_the_end_and_the_silence_of_process_0():
  told = [Told(), Told()]
  with socket.create_server(("127.0.0.1", 0)) as server:
    first, second = (watch.join(server.getsockname(), 1, 2, "secret", 0.4, each) for each in told)
    ended, _ = server.accept()
    ended.close()
    assert told[0].within(2) == "process 0 of 2 has ended"
    assert told[1].within(2) == "process 0 of 2 has not been heard of for 0.4 s"
    first.close()
    second.close()


@pytest.mark.parametrize(
  "said", [b"GET / HTTP/1.1\n", b'{"rank": 1, "secret": "guess"}\n', b"[" * 10_000, b"\xff\n", b"x"]
)
def test_a_stranger_ends_nothing(group, said):
  _, told, address = group
  with socket.create_connection(address) as stranger:
    stranger.sendall(said)
    time.sleep(0.3)
  assert [each.within(0.3) for each in told] == [None] * 3
