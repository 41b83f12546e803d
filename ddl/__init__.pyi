"""The public names of ddl, for type checkers and for their import on first use."""

from . import trackers as trackers
from .algorithms import COLLECTIVE as COLLECTIVE, SERVER as SERVER, WRAPPERS as WRAPPERS
from .algorithms.collective.acco import acco as acco
from .algorithms.collective.adaptive_local_sgd import (
  adaptive_local_sgd as adaptive_local_sgd,
  periods_by_loss as periods_by_loss,
)
from .algorithms.collective.bmuf import bmuf as bmuf
from .algorithms.collective.cocod import cocod as cocod
from .algorithms.collective.dasgd import dasgd as dasgd
from .algorithms.collective.des_loc import des_loc as des_loc
from .algorithms.collective.diloco import diloco as diloco, diloco_with as diloco_with
from .algorithms.collective.distributed_lion import distributed_lion as distributed_lion
from .algorithms.collective.dion import dion as dion
from .algorithms.collective.eager_diloco import eager_diloco as eager_diloco, eager_diloco_with as eager_diloco_with
from .algorithms.collective.eamsgd import eamsgd as eamsgd
from .algorithms.collective.easgd import easgd as easgd
from .algorithms.collective.edit import edit as edit
from .algorithms.collective.fedavg import fedavg as fedavg
from .algorithms.collective.fednova import fednova as fednova
from .algorithms.collective.fedopt import (
  fedadagrad as fedadagrad,
  fedadam as fedadam,
  fedopt_with as fedopt_with,
  fedyogi as fedyogi,
)
from .algorithms.collective.fedprox import fedprox as fedprox
from .algorithms.collective.gpa import gpa as gpa
from .algorithms.collective.hierarchical_sgd import hierarchical_sgd as hierarchical_sgd
from .algorithms.collective.independent import independent as independent
from .algorithms.collective.local_sgd import local_sgd as local_sgd
from .algorithms.collective.mt_dao import mt_dao as mt_dao
from .algorithms.collective.muloco import muloco as muloco
from .algorithms.collective.noloco import noloco as noloco
from .algorithms.collective.one_bit_adam import one_bit_adam as one_bit_adam
from .algorithms.collective.overlap_local_sgd import overlap_local_sgd as overlap_local_sgd
from .algorithms.collective.pipe_sgd import pipe_sgd as pipe_sgd
from .algorithms.collective.post_local_sgd import post_local_sgd as post_local_sgd
from .algorithms.collective.round_robin_easgd import round_robin_easgd as round_robin_easgd
from .algorithms.collective.scaffold import scaffold as scaffold
from .algorithms.collective.sharded_sync_sgd import sharded_sync_sgd as sharded_sync_sgd
from .algorithms.collective.slowmo import slowmo as slowmo
from .algorithms.collective.sma import sma as sma
from .algorithms.collective.sparseloco import sparseloco as sparseloco
from .algorithms.collective.snoo import snoo as snoo
from .algorithms.collective.streaming_diloco import (
  streaming_diloco as streaming_diloco,
  streaming_diloco_with as streaming_diloco_with,
)
from .algorithms.collective.sync_sgd import sync_sgd as sync_sgd
from .algorithms.gossip.ad_psgd import ad_psgd as ad_psgd
from .algorithms.gossip.choco_sgd import choco_sgd as choco_sgd
from .algorithms.gossip.d_psgd import d_psgd as d_psgd
from .algorithms.gossip.exact_diffusion import exact_diffusion as exact_diffusion
from .algorithms.gossip.gosgd import gosgd as gosgd
from .algorithms.gossip.gossip_pga import gossip_pga as gossip_pga
from .algorithms.gossip.gradient_tracking import gradient_tracking as gradient_tracking
from .algorithms.gossip.overlap_sgp import overlap_sgp as overlap_sgp
from .algorithms.gossip.pull_gossip import pull_gossip as pull_gossip
from .algorithms.gossip.push_gossip import push_gossip as push_gossip
from .algorithms.gossip.quasi_global_momentum import quasi_global_momentum as quasi_global_momentum
from .algorithms.gossip.relay_sgd import relay_sgd as relay_sgd
from .algorithms.gossip.sgp import sgp as sgp
from .algorithms.matrices import hidden_matrices as hidden_matrices
from .algorithms.qsr import qsr as qsr
from .algorithms.server.async_easgd import async_easgd as async_easgd
from .algorithms.server.async_local_sgd import async_local_sgd as async_local_sgd
from .algorithms.server.async_measgd import async_measgd as async_measgd
from .algorithms.server.async_msgd import async_msgd as async_msgd
from .algorithms.server.async_sgd import async_sgd as async_sgd
from .algorithms.server.dc_asgd import dc_asgd as dc_asgd
from .algorithms.server.decoupled_diloco import decoupled_diloco as decoupled_diloco
from .algorithms.server.downpour import downpour as downpour
from .algorithms.server.dynsgd import dynsgd as dynsgd
from .algorithms.server.fedbuff import fedbuff as fedbuff
from .algorithms.server.halos import halos as halos
from .algorithms.server.hogwild_easgd import hogwild_easgd as hogwild_easgd
from .algorithms.server.hogwild_sgd import hogwild_sgd as hogwild_sgd
from .algorithms.server.original_easgd import original_easgd as original_easgd
from .algorithms.server.rennala_sgd import rennala_sgd as rennala_sgd
from .algorithms.server.ringmaster_asgd import ringmaster_asgd as ringmaster_asgd
from .algorithms.server.staleness_aware_sgd import staleness_aware_sgd as staleness_aware_sgd
from .algorithms.wrappers.demo import demo as demo
from .algorithms.wrappers.dgc import dgc as dgc
from .algorithms.wrappers.ef21 import ef21 as ef21
from .algorithms.wrappers.fp8 import fp8 as fp8
from .algorithms.wrappers.int8 import int8 as int8
from .algorithms.wrappers.powersgd import powersgd as powersgd
from .algorithms.wrappers.qsgd import qsgd as qsgd
from .algorithms.wrappers.randomk import randomk as randomk
from .algorithms.wrappers.sign import sign as sign
from .algorithms.wrappers.sparta import sparta as sparta
from .algorithms.wrappers.topk import topk as topk
from .api import (
  Algorithm as Algorithm,
  Data as Data,
  Exchange as Exchange,
  Model as Model,
  ServerAlgorithm as ServerAlgorithm,
  Source as Source,
)
from .as_optax import as_optax as as_optax, consensus as consensus
from .asynchronous.simulator import Simulator as Simulator
from .data import DATA as DATA
from .data.arrays import from_arrays as from_arrays
from .data.hugging_face import from_hugging_face as from_hugging_face
from .engine.compiled_trainer import CompiledTrainer as CompiledTrainer
from .engine.execution import ExecutionConfig as ExecutionConfig
from .engine.workers import make_workers as make_workers
from .group import Group as Group
from .library.functions import (
  RunHook as RunHook,
  RunOptions as RunOptions,
  StepInfo as StepInfo,
  build as build,
  compare as compare,
  custom as custom,
  load as load,
  sweep as sweep,
  train as train,
)
from .models import MODELS as MODELS
from .models.modules import from_equinox as from_equinox, from_flax as from_flax, from_nnx as from_nnx

__version__: str
