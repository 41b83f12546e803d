"""Layer tables of networks by name. A new one is an entry here."""

from ddl.perf.layers import Table
from ddl.perf.tables.alexnet import alexnet, alexnet_v2
from ddl.perf.tables.googlenet import googlenet, googlenet_aux
from ddl.perf.tables.inception import inception_v3
from ddl.perf.tables.overfeat import overfeat, overfeat_fast
from ddl.perf.tables.resnet import resnet50
from ddl.perf.tables.small import cd_dnn, lenet, nin
from ddl.perf.tables.vgg import vgg16, vgg19, vgg_a

TABLES: dict[str, Table] = {
  "lenet": lenet,
  "alexnet": alexnet,
  "alexnet_v2": alexnet_v2,
  "overfeat": overfeat,
  "overfeat_fast": overfeat_fast,
  "nin": nin,
  "vgg_a": vgg_a,
  "vgg16": vgg16,
  "vgg19": vgg19,
  "googlenet": googlenet,
  "googlenet_aux": googlenet_aux,
  "inception_v3": inception_v3,
  "resnet50": resnet50,
  "cd_dnn": cd_dnn,
}


def named(name: str) -> Table:
  """The table.

  Raises:
    ValueError: for an unknown name, with all that are known.
  """
  if name not in TABLES:
    raise ValueError(f"no network named '{name}'; known are {', '.join(TABLES)}")
  return TABLES[name]
