"""Flags that several commands have. The first that asks defines one, so that any two fit into one process."""

from collections.abc import Callable
from typing import Any

from absl import flags

from ddl.perf import cluster_file
from ddl.perf.cluster import Cluster


def _once(define: Callable[..., Any], name: str, default: Any, text: str, **settings: Any) -> flags.FlagHolder[Any]:
  if name in flags.FLAGS:
    return flags.FlagHolder(flags.FLAGS, flags.FLAGS[name])
  return define(name, default, text, **settings)


def cluster() -> flags.FlagHolder[list[str]]:
  """Names of clusters."""
  text = "name of a cluster as `list` has them, or a file of one's own, my.toml; compare takes several, a,b"
  return _once(flags.DEFINE_list, "cluster", [], text)


def one_cluster() -> tuple[str, Cluster]:
  """The one that --cluster names, with its name.

  Raises:
    ValueError: for none, several, or one that is not known.
  """
  names = cluster().value
  if not names:
    raise ValueError(f"--cluster=NAME is missing; known are {', '.join(cluster_file.names())}")
  if len(names) > 1:
    raise ValueError(f"--cluster={','.join(names)}: give one cluster; compare alone takes several")
  there, model = cluster_file.named(names[0]), flags.FLAGS["model"].value if "model" in flags.FLAGS else ""
  return names[0], cluster_file.for_model(names[0], there, model or "")


def model() -> flags.FlagHolder[str]:
  """A network that is no config's."""
  return _once(flags.DEFINE_string, "model", "", "a layer table by name; scale also takes ddl's own models")


def batch() -> flags.FlagHolder[int | None]:
  """Examples per step, or None."""
  text = "examples a step: of a worker (plan; default: the config's or chosen), "
  text += "of all (scale; default: 512) or each with weak scaling"
  return _once(flags.DEFINE_integer, "batch", None, text, lower_bound=1, upper_bound=10**12)


def workers() -> flags.FlagHolder[str]:
  """A number, or several."""
  text = "number of workers (plan; default: the config's or chosen), or 1,2,...,8 (scale, instead of --nodes)"
  return _once(flags.DEFINE_string, "workers", "", text)


def servers() -> flags.FlagHolder[int | None]:
  """Parameter servers, or None."""
  text = "parameter servers (plan's default: chosen; scale's: 1)"
  return _once(flags.DEFINE_integer, "servers", None, text, lower_bound=1, upper_bound=65_536)


def processes() -> flags.FlagHolder[int]:
  """Processes on this machine."""
  return _once(flags.DEFINE_integer, "processes", 1, "local processes, joined by jax.distributed", lower_bound=1)


def algorithms() -> flags.FlagHolder[list[str] | None]:
  """Names of algorithms, or None."""
  text = "names, with commas between; default: sync_sgd,local_sgd,dasgd (scale), the labels of config.compare or the "
  text += "config's own (dryrun)"
  return _once(flags.DEFINE_list, "algorithms", None, text)


def overlap() -> flags.FlagHolder[str]:
  """Switch of overlapping exchanges with steps."""
  text = "off: the steps after a launch wait for its message"
  return _once(lambda name, default, text: flags.DEFINE_enum(name, default, ["on", "off"], text), "overlap", "on", text)


def turns() -> flags.FlagHolder[int]:
  """Pairs of blocks."""
  return _once(flags.DEFINE_integer, "turns", 5, "pairs of blocks per case", lower_bound=1)


def only() -> flags.FlagHolder[list[str]]:
  """Parts of names."""
  text = (
    "with commas between: labels or algorithms of config.compare.algorithms, parts of bench's case names; default: all"
  )
  return _once(flags.DEFINE_list, "only", [], text)


def tuned() -> flags.FlagHolder[str]:
  """A file that a sweep made."""
  text = "tuned.json of a sweep: learning rates and hyper-parameters per algorithm"
  return _once(flags.DEFINE_string, "tuned", "", text)


def checkpoint_every() -> flags.FlagHolder[int]:
  """Steps."""
  text = "steps between checkpoints; 0: only when a run stops, or train's ends"
  return _once(flags.DEFINE_integer, "checkpoint_every", 0, text, lower_bound=0)


def workdir() -> flags.FlagHolder[str]:
  """A folder for what the command writes."""
  return _once(flags.DEFINE_string, "workdir", "", "folder of what is written; default: runs/<what>-<time>")


def json() -> flags.FlagHolder[str]:
  """A file for the figures."""
  return _once(flags.DEFINE_string, "json", "", "file that the figures are written to")
