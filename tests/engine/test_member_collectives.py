"""The collectives that XLA inserts for the sharding rules: kinds, axes and bytes, as in the cost model."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from helpers.members import BATCH, NETWORKS, of_a_step
from jax.sharding import Mesh

from ddl.engine.compiled_program import Collective, collectives
from ddl.perf.hybrid import volume
from ddl.perf.layers import Layer

FLOAT = 4


@pytest.mark.parametrize("workers, members", [(2, 4), (1, 8), (4, 2), (2, 2)])
@pytest.mark.sampled(3)
def test_hybrid_layers_send_the_bytes_of_the_cost_model(workers, members):
  """Inputs of a layer and their gradients along "member", gradients of strips along "worker": arXiv 1602.06709."""
  meta, settings = NETWORKS["mlp"]
  widths = (*meta["shape"], *settings["hidden"], meta["num_outputs"])
  table = [Layer(f"fc{i}", a, b) for i, (a, b) in enumerate(pairwise(widths))]
  nodes = workers * members
  expected = [volume(layer, BATCH, nodes, workers, duplex=1.0) for layer in table]
  result = of_a_step("mlp", workers, members, "hybrid")
  assert {op.axis for op in result} == ({"member"} if workers == 1 else {"member", "worker"})
  assert {op.size for op in result if op.axis == "member"} == {members}

  inside = sum(op.nbytes for op in result if op.axis == "member")
  outputs = FLOAT * BATCH // workers * meta["num_outputs"]  # gathered for the loss
  # In the backward pass of the last layer, XLA gathers the weights if they are smaller than the inputs' gradients.
  saved = max(FLOAT * widths[-2] * (BATCH // workers - widths[-1]), 0)
  assert (
    inside == sum(layer.model for layer in expected[1:]) + outputs - saved
  )  # the first layer's inputs are everywhere

  across = [op for op in result if op.axis == "worker"]
  biases, loss = FLOAT * sum(widths[1:]) // members, FLOAT
  assert {op.kind for op in across} <= {"all-reduce"} and {op.size for op in across} <= {workers}
  strips = sum(layer.data for layer in expected)
  assert sum(op.nbytes for op in across) == (strips + biases + loss if workers > 1 else 0)
  assert sum(op.sent for op in across) == pytest.approx(
    2 * (workers - 1) / workers * (strips + biases + loss) if workers > 1 else 0
  )


def test_a_pair_of_layers_takes_one_sum_forward_and_one_backward():
  outputs = FLOAT * BATCH // 2 * 64
  inside = sorted((op.kind, op.nbytes) for op in of_a_step("mlp", 2, 4, "tensor") if op.axis == "member")
  # Forward of both pairs; backward of the second, as the inputs of the first have no gradient.
  assert inside == [("all-reduce", outputs // 8), ("all-reduce", outputs), ("all-reduce", outputs)]


@pytest.mark.slow
def test_attention_and_mlp_of_a_block_take_one_sum_op_way():
  result = of_a_step("transformer", 2, 4, "tensor")
  residual = FLOAT * BATCH // 2 * 6 * 32
  assert sum(op.nbytes == residual for op in result if op.axis == "member") == 2 * 2 * 2
  assert {op.kind for op in result} == {"all-reduce"}


def test_large_parameters_are_gathered():
  gathered = [op.nbytes for op in of_a_step("mlp", 2, 4, "fsdp") if op.kind == "all-gather"]
  assert gathered == [FLOAT * 64 * 64] * 2


# ---- the parser


MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("worker", "member"))


@pytest.mark.parametrize(
  "line, expected",
  [
    ("%a = f32[64,64]{1,0} all-reduce(%b), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=%add",
     Collective("all-reduce", 16384, 4, "worker", False)),
    ("%a = f32[8,6]{1,0} all-gather(%b), channel_id=2, replica_groups=[4,2]<=[8], dimensions={0}",
     Collective("all-gather", 192, 2, "member", False)),
    ("%a = (bf16[8]{0}, f32[2]{0}) all-reduce-start(%b, %c), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add",
     Collective("all-reduce", 24, 4, "worker", True)),
    ("%a = f64[2,6]{1,0} reduce-scatter(%b), replica_groups=[1,8]<=[8], dimensions={0}",
     Collective("reduce-scatter", 768, 8, "", False)),
    ("%a = (f32[4]{0}, f32[16]{0}) all-gather-start(%b), replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}",
     Collective("all-gather", 64, 4, "worker", True)),
    ("%a = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%b), source_target_pairs={{0,2},{2,4},{4,6}}",
     Collective("collective-permute", 16, 2, "worker", True)),
    ("%a = f8e4m3fn[32]{0} all-to-all(%b), replica_groups={{0,1},{2,3},{4,5},{6,7}}",
     Collective("all-to-all", 32, 2, "member", False)),
    ("%a = f64[] all-reduce(%b), replica_groups={}, to_apply=%add", Collective("all-reduce", 8, 8, "", False)),
    # Of XLA's own mesh, as of JAX 0.12: its axes need not be those of the program's mesh.
    ("%a = f32[2] all-reduce(%b), replica_groups=mesh['worker'=4,'member'=2] {'worker'}, to_apply=%add",
     Collective("all-reduce", 8, 4, "worker", False)),
    ("%a = f32[2] all-reduce(%b), channel_id=1, replica_groups=mesh['worker'=4,'member'=2] {'member'}, to_apply=%add",
     Collective("all-reduce", 8, 2, "member", False)),
    ("%a = f32[2] all-reduce(%b), replica_groups=mesh['worker'=4,'member'=2] {'worker','member'}, to_apply=%add",
     Collective("all-reduce", 8, 8, "", False)),
    ("%a = f32[2] all-gather(%b), replica_groups=mesh['all'=8] {'all':(4)2}, dimensions={0}",
     Collective("all-gather", 8, 2, "member", False)),
    ("%a = f32[2] all-gather(%b), replica_groups=mesh[all=8] {all:(1)2,all:(2)2}, dimensions={0}",
     Collective("all-gather", 8, 4, "worker", False)),
    ("%a = f32[2] all-reduce(%b), replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]<=[4,2]T(1,0)) {'b'}",
     Collective("all-reduce", 8, 4, "worker", False)),
    ("%a = f32[2] all-reduce(%b), replica_groups=mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'a'}, to_apply=%add",
     Collective("all-reduce", 8, 2, "member", False)),
  ],
)  # fmt: skip
def test_parsed_collectives(line, expected):
  assert collectives(f"  %x = f32[2]{{0}} add(%a, %b)\n  {line}\n", MESH) == [expected]


def test_bytes_that_a_device_sends():
  sent = {
    kind: Collective(kind, 80, 4, "worker", False).sent for kind in ("all-reduce", "all-gather", "reduce-scatter")
  }
  assert sent == {"all-reduce": 120, "all-gather": 60, "reduce-scatter": 60}
  assert Collective("collective-permute", 80, 2, "worker", False).sent == 80
