# ruff: noqa: F401
"""The public names of ddl, listed in `ddl.__all__`; `ddl.as_optax` and each factory are in modules of their own."""

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.algorithms.collective.adaptive_local_sgd import periods_by_loss
from ddl.api import Algorithm, Data, Exchange, Model, ServerAlgorithm, Source
from ddl.asynchronous.simulator import Simulator
from ddl.data import DATA
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.group import Group
from ddl.models import MODELS
from ddl.models.modules import from_equinox, from_flax, from_nnx
