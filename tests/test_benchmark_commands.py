"""The commands of the benchmarks: one line for a mistake, and kernels of a compiled program, counted by phase."""

import re
from collections import Counter

import pytest

from benchmarks import commands, hlo
from semisfl_jax.core.errors import UserError
from tests import runs


def test_the_folder_is_made(tmp_path):
    for _ in range(2):
        assert commands.folder(f'{tmp_path}/a/b').is_dir()
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match=r'--out=.*file'):
        commands.folder(f'{tmp_path}/file')


PROGRAM = """\
HloModule jit_round_, is_scheduled=true
%passes (t: (s32[])) -> (s32[]) {
  %fusion.1 = s32[] fusion(%t), kind=kLoop, calls=%nothing, metadata={op_name="supervised_step/while/body/add"}
}
%few (b: f32[]) -> f32[] {
  ROOT %copy.1 = f32[] copy(%b)
}
%many (b: f32[]) -> f32[] {
  %copy.2 = f32[] copy(%b)
  ROOT %copy.3 = f32[] copy(%copy.2)
}
%supervised (s: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %while.1 = (s32[]) while(%s), condition=%unknown, body=%passes, STEP/while"}, "known_trip_count":{"n":"12"}
  %conv.1 = (f32[8,4]{1,0}, u8[0]{0}) custom-call(%s), custom_call_target="__cudnn$convForward", \
feature_group_count=10, STEP/transpose(jvp())/conv_general_dilated"}
  %branch = f32[] conditional(%s, %s, %s), branch_computations={%few, %many}
}
%iterations (s: (f32[4,4])) -> (f32[4,4]) {
  %dot.2 = f32[4,4] convolution(%s.1, %s.1), dim_labels=bf_io->bf, ITERATION/jvp()/dot_general"}
  %sum = (f32[256]{0}, bf16[64]{0}) all-reduce-start(%s.1), to_apply=%add, ITERATION/psum"}
  %sum.1 = (f32[256]{0}, bf16[64]{0}) all-reduce-done(%sum)
}
ENTRY %main (key: u32[2]) -> (f32[4,4]) {
  %while.2 = (s32[], f32[4,4]) while(%key), condition=%unknown, body=%supervised, metadata={op_name="jit(round_)/while"}
  %while.3 = (f32[4,4]) while(%while.2), condition=%unknown, body=%iterations, metadata={op_name="jit(round_)/while"}
  ROOT %copy.9 = f32[4,4] copy(%while.3)
}
""".replace('STEP', 'metadata={op_name="while/body/supervised_step')
PROGRAM = PROGRAM.replace('ITERATION', 'metadata={op_name="while/body/closed_call/cross_entity_iteration')


def test_what_a_program_does_by_phase():
    counts = hlo.phases(hlo.parse(PROGRAM))
    assert list(counts) == ['supervised_step', 'cross_entity_iteration', hlo.REST]
    supervised, iteration, rest = counts.values()
    assert supervised.kernels == 12 + 1 + 2  # passes, a convolution, the longer branch
    assert supervised.products == Counter({'cuDNN convForward (backward), 10 feature groups': 1})
    assert (iteration.kernels, iteration.products) == (2, Counter({'product': 1}))
    assert iteration.bytes == Counter({'all-reduce': 4 * 256 + 2 * 64})
    assert rest.kernels == 1  # a copy


@pytest.mark.slow
def test_convolutions_of_a_real_program(capsys):
    """small_cnn has two: student and teacher forward, and backward two gradients of kernels and one of features."""
    assert hlo.main([*runs.words_of('hlo'), '--target=cpu']) == 0
    _, supervised, iteration, rest = re.split('^[at].*kernels', capsys.readouterr().out, flags=re.MULTILINE)
    active = runs.TINY['federation.num_active']  # one after another on a CPU
    for text, clients in ((supervised, 1), (iteration, active)):
        assert f'{4 * clients} convolution (forward)' in text
        assert f'{3 * clients} convolution (backward)' in text
    assert 'convolution' not in rest
