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


LOOPS = """\
HloModule jit_round_, is_scheduled=true
%product (a: f32[4,4]) -> f32[4,4] {
  ROOT %dot.1 = f32[4,4]{1,0:T(8,128)} dot(%a, %a), lhs_contracting_dims={1}, metadata={op_name="while/body/supervised_step/dot_general"}
}
%passes (t: (s32[])) -> (s32[]) {
  %fusion.1 = s32[] fusion(%t), kind=kLoop, calls=%nothing, metadata={op_name="while/body/supervised_step/while/body/add"}
}
%twelve (t: (s32[])) -> pred[] {
  %constant.1 = s32[] constant(12), metadata={op_name="x"}
  ROOT %lt = pred[] compare(%i, %constant.1), direction=LT
}
%few (b: f32[]) -> f32[] {
  ROOT %copy.1 = f32[] copy(%b)
}
%many (b: f32[]) -> f32[] {
  %copy.2 = f32[] copy(%b)
  ROOT %copy.3 = f32[] copy(%copy.2)
}
%small (t: (s32[])) -> (s32[]) {
  ROOT %while.9 = (s32[]) while(%t), condition=%twelve, body=%passes, metadata={op_name="while/body/supervised_step/fold/while"}
}
%supervised (s: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %while.1 = (s32[]) while(%s), condition=%twelve, body=%passes, metadata={op_name="while/body/supervised_step/while"}
  %conv.1 = (f32[8,4]{1,0}, u8[0]{0}) custom-call(%s), custom_call_target="__cudnn$convForward", feature_group_count=10, metadata={op_name="while/body/supervised_step/transpose(jvp())/conv_general_dilated"}
  %fusion.2 = f32[4,4]{1,0} fusion(%s), kind=kOutput, calls=%product, metadata={op_name="while/body/supervised_step/x"}
  %key.1 = (s32[]) call(%s), to_apply=%small, frontend_attributes={xla_cpu_small_call="true"}, metadata={op_name="while/body/supervised_step/fold/while"}
  %branch = f32[] conditional(%s, %s, %s), branch_computations={%few, %many}
}
%unknown (s: (s32[], s32[])) -> pred[] {
  ROOT %lt.1 = pred[] compare(%i.1, %k), direction=LT
}
%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %add.1 = f32[] add(%x, %y)
}
%iterations (s: (f32[4,4])) -> (f32[4,4]) {
  %shared = f32[] fusion(%s.1), kind=kLoop, calls=%few, metadata={op_name="while/body/supervised_step/merged"}
  %dot.2 = f32[4,4] convolution(%s.1, %s.1), dim_labels=bf_io->bf, metadata={op_name="while/body/closed_call/cross_entity_iteration/jvp()/dot_general"}
  %conv.2 = f32[4,4] convolution(%s.1, %s.1), window={size=3x3}, dim_labels=b01f_01io->b01f, batch_group_count=2, metadata={op_name="while/body/closed_call/cross_entity_iteration/conv_general_dilated"}
  %sum = (f32[256]{0}, bf16[64]{0}) all-reduce-start(%s.1), to_apply=%add, metadata={op_name="while/body/closed_call/cross_entity_iteration/psum"}
  %sum.1 = (f32[256]{0}, bf16[64]{0}) all-reduce-done(%sum)
  %all = (f32[16]{0}, f32[128]{0}) all-gather-start(%s.1), metadata={op_name="while/body/closed_call/cross_entity_iteration/all_gather"}
}
ENTRY %main (key: u32[2]) -> (f32[4,4]) {
  %while.2 = (s32[], f32[4,4]) while(%key), condition=%unknown, body=%supervised, metadata={op_name="jit(round_)/while"}
  %while.3 = (f32[4,4]) while(%while.2), condition=%unknown, body=%iterations, metadata={op_name="jit(round_)/while"}, backend_config={"known_trip_count":{"n":"50"}}
  %while.4 = (s32[]) while(%while.3), condition=%unknown, body=%passes, metadata={op_name="jit(round_)/other/while"}
  ROOT %copy.9 = f32[4,4] copy(%while.3)
}
"""  # noqa: E501


def test_what_a_program_does_by_phase():
    # `passes` is of the supervised phase by its name, so the last loop would be one of its loops; give it another name
    text = LOOPS.replace('body=%passes, metadata={op_name="jit(round_)/other/while"}', 'body=%shuffle')
    text = text.replace('ENTRY', '%shuffle (t: (s32[])) -> (s32[]) {\n  ROOT %copy.4 = (s32[]) copy(%t)\n}\n\nENTRY')
    counts = hlo.phases(hlo.parse(text))
    assert list(counts) == ['supervised_step', 'cross_entity_iteration', hlo.REST]
    supervised, iteration, rest = counts.values()
    assert supervised.kernels == 12 + 1 + 1 + 1 + 2  # passes, convolution, fusion, a small loop, the longer branch
    assert supervised.products == Counter({'cuDNN convForward (backward), 10 feature groups': 1, 'product': 1})
    assert iteration.kernels == 5  # a fusion, two products, two collectives
    assert iteration.products == Counter({'product': 1, 'convolution (forward), 2 batch groups': 1})
    assert iteration.collectives == Counter({'all-reduce': 1, 'all-gather': 1})
    assert iteration.bytes == Counter({'all-reduce': 4 * 256 + 2 * 64, 'all-gather': 4 * 128})
    assert (rest.kernels, rest.open_loops) == (2, 1)  # a loop of unknown length counts once, beside a copy
    assert (supervised.open_loops, iteration.open_loops) == (0, 0)


def test_views_ahead_are_of_no_step():
    """A loop over the views of several steps is of the rest, though the compiler merged code of a step into it."""
    views = f'jit(round_)/{hlo.AHEAD}steps'
    text = f"""HloModule program
%views (t: (s32[])) -> (s32[]) {{
  %fusion.1 = s32[8] fusion(%t), metadata={{op_name="{views}/add"}}
  %fusion.2 = s32[8] fusion(%t), metadata={{op_name="{views}/sub"}}
  ROOT %fusion.3 = s32[8] fusion(%t), metadata={{op_name="jit(round_)/supervised_step/add"}}
}}
%step (t: (s32[])) -> (s32[]) {{
  ROOT %fusion.4 = s32[8] fusion(%t), metadata={{op_name="jit(round_)/supervised_step/add"}}
}}
ENTRY %main (t: (s32[])) -> (s32[]) {{
  %while.1 = (s32[]) while(%t), condition=%unknown, body=%views, backend_config={{"known_trip_count":{{"n":"2"}}}}
  ROOT %while.2 = (s32[]) while(%while.1), condition=%unknown, body=%step
}}
"""
    counts = hlo.phases(hlo.parse(text))
    assert {phase: count.kernels for phase, count in counts.items()} == {'supervised_step': 1, hlo.REST: 2 * 3}


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
