"""Progress of a run in a terminal, a file and a notebook (with a recorder as display)."""

import re
import sys
import types

import pytest

from ddl import Data, Source
from ddl.run import progress, train


@pytest.fixture
def clock(monkeypatch):
  """The clock of the progress, which a test sets."""
  now = [100.0]
  for name in ("monotonic", "time"):
    monkeypatch.setattr(progress.time, name, lambda: now[0])
  return now


def test_lines_exclude_compilation_from_the_time_left(clock, monkeypatch, capsys):
  monkeypatch.setattr(progress, "has_bar", lambda: False)
  with progress.ProgressBar("x", 100, 0) as shown:
    shown.show(0, {"test_loss": 2.0})
    clock[0] += 600  # of compilation
    shown.show(10, {"test_loss": 1.0})
    clock[0] += 20
    shown.show(20, {"test_loss": 0.5})
  first, second = capsys.readouterr().out.splitlines()
  assert first.startswith("x: step 10 of 100") and "left" not in first
  assert re.search(r"step 20 of 100, .*about 160 s left", second), second


def test_the_time_left_excludes_later_compilation(clock, monkeypatch, capsys):
  monkeypatch.setattr(progress, "has_bar", lambda: False)
  with progress.ProgressBar("x", 100, 0) as shown:
    shown.show(10, {}, 600.0)
    clock[0] += 320  # of which 300 compile another program
    shown.show(20, {"test_loss": 0.5}, 900.0)
  assert re.search(r"step 20 of 100, .*about 160 s left", capsys.readouterr().out)


def test_a_resumed_bar_excludes_compilation_from_its_rate(clock, monkeypatch, capsys):
  monkeypatch.setattr(progress, "has_bar", lambda: True)
  with progress.ProgressBar("x", 100, 40) as shown:
    clock[0] += 600
    shown.show(50, {}, 600.0)
    clock[0] += 20
    shown.show(60, {"test_loss": 0.5}, 605.0)
    bar = shown._bar
    assert (bar.initial, bar.start_t, bar.n, bar.smoothing) == (50, 705.0, 60, 0)
  assert "compiling" not in bar.desc and "x" in capsys.readouterr().err


def test_the_text_about_the_data_states_the_number_of_examples_once():
  source = Source(1200, lambda k: {"x": k})
  for description, line in {
    "1,200 + 80 images": "1,200 + 80 images",
    "11,200 points": "11,200 points; 1,200 training examples",
  }.items():
    assert train._data_text(Data(source, source, {"description": description})) == line


class Shown(list):
  """The texts that an output cell has displayed."""

  def __call__(self, data, *, raw, display_id):
    assert raw and display_id
    self.append(data["text/plain"])
    return self

  def update(self, data, *, raw):
    self.append(data["text/plain"])


def test_bars_of_a_notebook_cell_share_an_output_that_is_empty_at_the_end(monkeypatch, capsys):
  shell, cells = types.SimpleNamespace(execution_count=1), list[Shown]()

  def display(*data, **how):
    cells.append(Shown())
    return cells[-1](*data, **how)

  shown = types.SimpleNamespace(display=display)
  notebook = types.SimpleNamespace(display=shown, get_ipython=lambda: shell)
  monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
  monkeypatch.setitem(sys.modules, "IPython", notebook)
  progress._cell.cache_clear()
  for execution, label in ((1, "sync SGD"), (1, "local SGD"), (2, "DaSGD")):
    shell.execution_count = execution
    with progress.ProgressBar(label, 20, 0) as bar:
      bar.show(10, {"test_loss": 0.5})
      bar.show(20, {"test_loss": 0.25})
  progress._cell.cache_clear()
  first, second = cells
  assert all(label in "".join(first) for label in ("sync SGD", "local SGD")) and "DaSGD" in "".join(second)
  assert not first[-1] and not second[-1]
  assert capsys.readouterr() == ("", "")
