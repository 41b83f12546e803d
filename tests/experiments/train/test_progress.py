"""Progress in a notebook, whose display is recorded: one output, empty in the end."""

import sys
import types

from experiments.train import progress


class Shown(list):
  """What an output has shown, in turn."""

  def __call__(self, data, *, raw, display_id):
    assert raw and display_id
    self.append(data["text/plain"])
    return self

  def update(self, data, *, raw):
    self.append(data["text/plain"])


def test_a_bar_of_a_notebook_is_gone_after_the_end(monkeypatch, capsys):
  shown = Shown()
  monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
  monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
  monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=shown))
  with progress.Progress("local SGD", 20, 0) as bar:
    bar.show(10, {"test_loss": 0.5})
    bar.show(20, {"test_loss": 0.25})
  assert "local SGD" in "".join(shown) and not shown[-1]
  assert capsys.readouterr() == ("", "")
