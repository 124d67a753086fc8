"""What the outputs of a program depend on, by a walk over its equations: no number is computed, so it holds for all."""

from jax.extend import core as jax_core

# Of an array: tells which secrets are known; depends on none; may depend on one. Of several the last wins.
MASK, OPEN, SECRET = range(3)
# The first input in other places, the others saying where
MOVES = {'broadcast_in_dim', 'copy', 'dynamic_slice', 'gather', 'reshape', 'slice', 'squeeze', 'transpose'}


def kinds(jaxpr, inputs):
    """Returns the kind of each output of a jaxpr, whose inputs have these kinds; constants are open."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def kind(atom):
        return OPEN if isinstance(atom, jax_core.Literal) else known.get(atom, OPEN)

    for equation in jaxpr.eqns:
        known.update(zip(equation.outvars, _outputs(equation, [*map(kind, equation.invars)]), strict=True))
    return [*map(kind, jaxpr.outvars)]


def _outputs(equation, inputs):
    name, params, inner = equation.primitive.name, equation.params, [*jax_core.jaxprs_in_params(equation.params)]
    if name == 'scan':
        constants, carried = params['num_consts'], params['num_carry']
        rest = inputs[constants + carried :]
        body = lambda carry: kinds(params['jaxpr'].jaxpr, inputs[:constants] + carry + rest)  # noqa: E731
        return body(_settle(lambda carry: body(carry)[:carried], inputs[constants : constants + carried]))
    if name == 'while':
        first, second = params['cond_nconsts'], params['cond_nconsts'] + params['body_nconsts']

        def step(carry):
            (goes_on,) = kinds(params['cond_jaxpr'].jaxpr, inputs[:first] + carry)
            return [max(kind, goes_on) for kind in kinds(params['body_jaxpr'].jaxpr, inputs[first:second] + carry)]

        return _settle(step, inputs[second:])
    if name == 'cond':
        return [
            max(inputs[0], *of_branches) for of_branches in zip(*(kinds(b, inputs[1:]) for b in inner), strict=True)
        ]
    if len(inner) == 1 and len(inner[0].invars) == len(inputs):
        return kinds(inner[0], inputs)
    if name == 'select_n' and inputs[0] == MASK:  # of a secret that is known, or of the other case
        return [max(OPEN, inputs[1])]
    moved = name in MOVES and SECRET not in inputs[1:]
    return [inputs[0] if moved else max([OPEN, *inputs])] * len(equation.outvars)


def _settle(step, carry):
    """Returns what a loop carries in the end, however often it runs."""
    while (after := [*map(max, carry, step(carry))]) != carry:
        carry = after
    return carry
