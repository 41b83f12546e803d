# ruff: noqa: E501  # the texts are as compilers write them
"""FLOP, bytes and order of events of a compiled program: small texts as each compiler writes them, and CPU programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from ddl.engine.compiled_program import collectives, flop, memory_traffic, read

# A chain of a TPU program: the all-reduce is in its start, in the kernel that drives it and in its end.
CHAIN = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

%begin (p0: f32[1024]) -> (f32[1024], f32[1024], u32[]) {
  %p0 = f32[1024]{0:T(1024)} parameter(0)
  %all-reduce.1 = f32[1024]{0:T(1024)} all-reduce(%p0), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %call.1 = (f32[1024]{0}, f32[1024]{0}, u32[]) custom-call(%all-reduce.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.1 (q0: f32[1024], q1: f32[1024], q2: f32[64,128], q3: f32[128,32]) -> (f32[64,32], f32[1024], f32[1024]) {
  %q0 = f32[1024]{0:T(1024)} parameter(0)
  %q1 = f32[1024]{0:T(1024)} parameter(1)
  %q2 = f32[64,128]{1,0:T(8,128)} parameter(2)
  %q3 = f32[128,32]{1,0:T(8,128)S(1)} parameter(3)
  %convolution.1 = f32[64,32]{1,0:T(8,128)} convolution(%q2, %q3), dim_labels=bf_io->bf
  %all-reduce.2 = f32[1024]{0:T(1024)} all-reduce(%q0), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %tuple.1 = (f32[64,32]{1,0}, f32[1024]{0}, f32[1024]{0}) tuple(%convolution.1, %q0, %q1)
}

%end (r0: f32[1024], r1: f32[1024]) -> f32[1024] {
  %r0 = f32[1024]{0:T(1024)} parameter(0)
  %r1 = f32[1024]{0:T(1024)} parameter(1)
  %all-reduce.3 = f32[1024]{0:T(1024)} all-reduce(%r0), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %call.2 = f32[1024]{0} custom-call(%r0, %r1, %all-reduce.3), custom_call_target="AsyncCollectiveDone"
}

%body (s: (s32[], f32[1024], f32[64,128], f32[128,32])) -> (s32[], f32[1024], f32[64,128], f32[128,32]) {
  %s = (s32[], f32[1024]{0}, f32[64,128]{1,0}, f32[128,32]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %m = f32[1024]{0:T(1024)} get-tuple-element(%s), index=1
  %x = f32[64,128]{1,0:T(8,128)} get-tuple-element(%s), index=2
  %w = f32[128,32]{1,0:T(8,128)S(1)} get-tuple-element(%s), index=3
  %async-start = (f32[1024]{0}, f32[1024]{0}, u32[]) fusion(%m), kind=kCustom, calls=%begin
  %g0 = f32[1024]{0:T(1024)} get-tuple-element(%async-start), index=0
  %g1 = f32[1024]{0:T(1024)} get-tuple-element(%async-start), index=1
  %fusion.1 = (f32[64,32]{1,0}, f32[1024]{0}, f32[1024]{0}) fusion(%g0, %g1, %x, %w), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%async_collective_fusion.1
  %h0 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.1), index=1
  %h1 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.1), index=2
  %convolution.2 = f32[64,32]{1,0:T(8,128)} convolution(%x, %w), dim_labels=bf_io->bf
  %async-done = f32[1024]{0:T(1024)} fusion(%h0, %h1), kind=kCustom, calls=%end
  ROOT %out = (s32[], f32[1024]{0}, f32[64,128]{1,0}, f32[128,32]{1,0}) tuple(%i, %async-done, %x, %w)
}

%condition (t: (s32[], f32[1024], f32[64,128], f32[128,32])) -> pred[] {
  %limit = s32[]{:T(128)} constant(3)
  %t = (s32[], f32[1024]{0}, f32[64,128]{1,0}, f32[128,32]{1,0}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %less = pred[]{:T(512)} compare(%j, %limit), direction=LT
}

ENTRY %main (u: (s32[], f32[1024], f32[64,128], f32[128,32])) -> (s32[], f32[1024], f32[64,128], f32[128,32]) {
  %u = (s32[], f32[1024]{0}, f32[64,128]{1,0}, f32[128,32]{1,0}) parameter(0)
  ROOT %while.1 = (s32[], f32[1024]{0}, f32[64,128]{1,0}, f32[128,32]{1,0}) while(%u), condition=%condition, body=%body
}
"""
# Two chains at the same time; the last kernel of the second works on what one of the first has made.
TWO = """  %async-start = (f32[1024]{0}, f32[1024]{0}, u32[]) fusion(%m), kind=kCustom, calls=%begin
  %g0 = f32[1024]{0:T(1024)} get-tuple-element(%async-start), index=0
  %g1 = f32[1024]{0:T(1024)} get-tuple-element(%async-start), index=1
  %async-start.1 = (f32[1024]{0}, f32[1024]{0}, u32[]) fusion(%m), kind=kCustom, calls=%begin
  %k0 = f32[1024]{0:T(1024)} get-tuple-element(%async-start.1), index=0
  %k1 = f32[1024]{0:T(1024)} get-tuple-element(%async-start.1), index=1
  %fusion.1 = (f32[64,128]{1,0}, f32[1024]{0}, f32[1024]{0}) fusion(%g0, %g1, %x, %w), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%async_collective_fusion.1
  %y = f32[64,128]{1,0:T(8,128)} get-tuple-element(%fusion.1), index=0
  %h0 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.1), index=1
  %h1 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.1), index=2
  %fusion.2 = (f32[64,32]{1,0}, f32[1024]{0}, f32[1024]{0}) fusion(%k0, %k1, %x, %w), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%async_collective_fusion.1
  %i0 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.2), index=1
  %i1 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.2), index=2
  %fusion.3 = (f32[64,32]{1,0}, f32[1024]{0}, f32[1024]{0}) fusion(%i0, %i1, %x, %w), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%async_collective_fusion.1
  %j0 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.3), index=1
  %j1 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.3), index=2
  %fusion.4 = (f32[64,32]{1,0}, f32[1024]{0}, f32[1024]{0}) fusion(%j0, %j1, %y, %w), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%async_collective_fusion.1
  %l0 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.4), index=1
  %l1 = f32[1024]{0:T(1024)} get-tuple-element(%fusion.4), index=2
  %async-done = f32[1024]{0:T(1024)} fusion(%h0, %h1), kind=kCustom, calls=%end
  %async-done.1 = f32[1024]{0:T(1024)} fusion(%l0, %l1), kind=kCustom, calls=%end
"""
# Of a GPU program: an asynchronous all-reduce, one that is made synchronous again, and a product by cuBLAS.
PAIRS = """HloModule jit_f, is_scheduled=true

ENTRY %main (p: f32[1000], x: bf16[64,128], w: bf16[128,32]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  %x = bf16[64,128]{1,0} parameter(1)
  %w = bf16[128,32]{1,0} parameter(2)
  %all-reduce-start = f32[1000]{0} all-reduce-start(%p), replica_groups=[1,8]<=[8], backend_config={"is_sync":false}
  %gemm = (bf16[64,32]{1,0}, s8[64]{0}) custom-call(%x, %w), custom_call_target="__cublas$gemm", backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}
  %all-reduce-done = f32[1000]{0} all-reduce-done(%all-reduce-start)
  %all-reduce-start.1 = f32[1000]{0} all-reduce-start(%all-reduce-done), replica_groups=[1,8]<=[8], backend_config={"is_sync":true}
  ROOT %all-reduce-done.1 = f32[1000]{0} all-reduce-done(%all-reduce-start.1)
}
"""
MATMUL = 2 * 64 * 128 * 32


@pytest.fixture
def mesh():
  return Mesh(np.array(jax.devices()).reshape(8, 1), ("worker", "member"))


def test_a_chain_is_one_collective_that_its_kernels_drive(mesh):
  result = read(CHAIN, mesh)
  ((kind, times, events),) = result.events
  assert (kind, times) == ("loop", 3)  # the constant of its condition
  # The kernel reads x and writes the product; w is on the chip, and the message passes in place.
  product = 4 * (64 * 128 + 64 * 32)
  assert events == [
    ["start", 0, True], ["work", MATMUL, product, True], ["work", MATMUL, product, False], ["done", 0]
  ]  # fmt: skip
  assert [(each.nbytes, each.size, each.axis, each.starts) for each in result.collectives] == [
    (4096, 8, "worker", True)
  ]
  assert flop(result.events) == 3 * 2 * MATMUL and memory_traffic(result.events) == 3 * 2 * product
  assert len(collectives(CHAIN, mesh)) == 1


def test_chains_at_the_same_time_are_told_apart(mesh):
  before, rest = CHAIN.split("  %async-start = ")
  after = rest[rest.index("  ROOT %out") :]
  ((_, _, events),) = read(before + TWO + after, mesh).events
  assert [event[:2] for event in events if event[0] != "work"] == [["start", 0], ["start", 1], ["done", 0], ["done", 1]]


def test_pairs_of_a_start_and_an_end(mesh):
  result = read(PAIRS, mesh)
  names = [event[:2] for event in result.events if event[0] != "work"]
  assert names == [["start", 0], ["done", 0], ["start", 1], ["done", 1]]
  assert [event[0] for event in result.events][1] == "work" and flop(result.events) == MATMUL
  assert [each.starts for each in result.collectives] == [True, False]


def compiled(fn, *shapes):
  return jax.jit(fn).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile()


def test_products_in_loops_count_as_often_as_they_run(mesh):
  def steps(w, xs):
    return lax.scan(lambda w, x: (jnp.tanh(w @ x), None), w, xs, length=7)[0]

  assert flop(read(compiled(steps, (24, 24), (7, 24, 24)).as_text(), mesh).events) == 7 * 2 * 24**3


@pytest.mark.parametrize("strides, dilation, groups", [((1, 1), 1, 1), ((2, 2), 1, 1), ((1, 1), 2, 1), ((1, 1), 1, 2)])
def test_convolutions_and_their_gradients_have_xlas_flop(strides, dilation, groups, mesh):
  numbers = ("NHWC", "HWIO", "NHWC")

  def conv(x, k):
    return lax.conv_general_dilated(
      x, k, strides, "SAME", (1, 1), (dilation, dilation), dimension_numbers=numbers, feature_group_count=groups
    )

  def loss(x, k):
    return jnp.sum(conv(x, k) ** 2)

  shapes = (5, 9, 9, 4), (3, 3, 4 // groups, 6)
  for fn in (conv, jax.grad(loss, 0), jax.grad(loss, 1)):
    program = compiled(fn, *shapes)
    small = 5 * 9 * 9 * 6 * 3  # of all that is no product
    assert flop(read(program.as_text(), mesh).events) == pytest.approx(program.cost_analysis()["flops"], abs=small)


def test_bytes_are_those_of_xla_and_of_slices_alone(mesh):
  product = compiled(lambda x, w: x @ w, (64, 128), (128, 32))
  assert memory_traffic(read(product.as_text(), mesh).events) == product.cost_analysis()["bytes accessed"]

  sliced = compiled(lambda x, w: lax.dynamic_slice(x, (3, 0), (1, 1000)) * w, (500, 1000), (1, 1000))
  assert memory_traffic(read(sliced.as_text(), mesh).events) == pytest.approx(3 * 4 * 1000, rel=0.02)
