"""Exports a model that a run saved: weights and a program, which predict without this package.

    semisfl export RUN OUT [--model=NAME] [--round=N | --best] [--import=FILE.py]

OUT, a new folder, gets the weights (weights.safetensors), the program from images to logits, or to what a dense task
predicts (program.jax, made by jax.export for CPU, CUDA and TPU and for any number of images), what a caller must know
(model.json: shapes of images and outputs, names of the classes, normalization, scores, settings), and a README.md with
the lines that load it. These need JAX, NumPy and flatbuffers.

RUN is the folder of a run of one seed; of several, its seed_N. NAME is an output of the run, such as teacher or
student, or one of its dense tasks; by default the one that judges the method. N is a round that has a checkpoint; by
default the last; --best takes the one that `callbacks.keep_best` kept. If a method, model or data set is yours,
--import runs the file that registers it.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.extend
import numpy as np
from safetensors import numpy as safetensors

from semisfl_jax import config as config_lib
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.errors import UserError, use_one_of
from semisfl_jax.base.keys import as_word
from semisfl_jax.core.types import Array
from semisfl_jax.tasks import split_key
from semisfl_jax.training import load, metrics
from semisfl_jax.training.experiment import Experiment, compile_with

PLATFORMS = ('cpu', 'cuda', 'tpu')
LOADER = """\
import json, jax, numpy as np
from jax import export
raw, model = open('weights.safetensors', 'rb').read(), json.load(open('model.json'))
start = 8 + int.from_bytes(raw[:8], 'little')  # of the numbers in a .safetensors file
weights = {
    name: np.frombuffer(raw[start:][slice(*entry['data_offsets'])], 'f4').reshape(entry['shape'])
    for name, entry in json.loads(raw[8:start]).items()
}
program = export.deserialize(open('program.jax', 'rb').read())
predict = jax.jit(program.call, compiler_options=model['compiler_options'].get(jax.default_backend()))
outputs = predict(weights, images)  # images [N, H, W, C] uint8, 0 to 255, as model.json says
"""


def export(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: str = '',
    round_number: int | str | None = None,
) -> dict[str, Any]:
    """Exports a model of a run; see the text of this module.

    Args:
      folder: of a run of one seed.
      out: the folder to write, which is new or empty.
      model: an output of `Trained.predict`; '' for the one that judges the method.
      round_number: of a checkpoint, or 'best', as in `load_trained`; None: the last one.

    Returns:
      The content of model.json.

    Raises:
      UserError: `load_trained` raises it, there is no such output, or `out` has files.
    """
    path, target = file_io.expand_home(folder, 'the folder'), file_io.expand_home(out, 'the folder')
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f'{target} exists; give a new folder for the exported model')
    built = load.without_data(path)
    number, state = load.state(path, built, round_number)
    weights, program, name = _program(built, state, model)
    described = _describe(path, built, name, number, _outputs(program))
    target.mkdir(parents=True, exist_ok=True)
    file_io.write(target / 'weights.safetensors', bytes(safetensors.save(weights)))
    file_io.write(target / 'program.jax', bytes(program.serialize()))
    file_io.write_json(target / 'model.json', described)
    file_io.write(target / 'README.md', card(described).encode())
    return described


def _program(built: Experiment, state: Any, name: str) -> tuple[dict[str, np.ndarray], jax.export.Exported, str]:
    """Returns the weights {path in the state: array} that an output reads, the program, and the name of the output."""
    paths = jax.tree_util.tree_leaves_with_path(state)
    leaves = {jax.tree_util.keystr(key, simple=True, separator='/'): np.asarray(leaf) for key, leaf in paths}
    image = built.dataset.outline.image
    one = jax.ShapeDtypeStruct((1, *image), np.uint8)
    outputs = jax.eval_shape(built.algorithm.predict, state, one)
    name = name or built.algorithm.headline
    if name not in outputs:
        raise UserError(f'--model={name}: the run has no such output; {use_one_of(name, outputs)}')

    def predict(weights: Mapping[str, Array], images: Array) -> Any:
        unread = {key: np.zeros(leaf.shape, leaf.dtype) for key, leaf in leaves.items() if key not in weights}
        whole = jax.tree.unflatten(jax.tree.structure(state), [{**unread, **weights}[key] for key in leaves])
        return built.algorithm.predict(whole, images)[name]

    weights = {key: leaves[key] for key in _read(predict, leaves, one)}
    if other := [key for key, leaf in weights.items() if leaf.dtype != np.float32]:
        raise UserError(f'{other[0]} is of {weights[other[0]].dtype}: only weights of float32 can be exported')
    (batch,) = jax.export.symbolic_shape('batch')
    arguments = _shapes(weights), jax.ShapeDtypeStruct((batch, *image), np.uint8)
    return weights, jax.export.export(compile_with(built.config)(predict), platforms=PLATFORMS)(*arguments), name


def _outputs(program: jax.export.Exported) -> dict[str, dict[str, Any]]:
    """Returns shape, without that of the batch, and type of each array that the program gives, '' if it is one."""
    arrays = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(program.out_tree, program.out_avals))
    return {
        jax.tree_util.keystr(key, simple=True, separator='/'): {'shape': [*array.shape[1:]], 'dtype': str(array.dtype)}
        for key, array in arrays
    }


def _shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    return {key: jax.ShapeDtypeStruct(array.shape, array.dtype) for key, array in arrays.items()}


def _read(predict: Any, leaves: Mapping[str, np.ndarray], images: jax.ShapeDtypeStruct) -> list[str]:
    """Returns the names of the arrays that the output of `predict(leaves, images)` depends on."""
    program = jax.make_jaxpr(predict)(_shapes(leaves), images).jaxpr
    needed = set(program.outvars)
    for equation in reversed(program.eqns):
        if needed & {*equation.outvars}:
            needed |= {each for each in equation.invars if isinstance(each, jax.extend.core.Var)}
    return [key for key, variable in zip(sorted(leaves), program.invars, strict=False) if variable in needed]


def _describe(
    folder: Path, built: Experiment, name: str, number: int, outputs: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Returns the content of model.json."""
    dataset, config = built.dataset, load.config(folder)
    lines = metrics.read(folder / 'metrics.jsonl')[number - 1 : number] if number else []
    scores = {
        key: score for line in lines for key, score in line.items() if (of := split_key(key)) and of.output == name
    }
    summary = file_io.read_object(folder / 'summary.json') if (folder / 'summary.json').exists() else {}
    default, hidden = config_lib.flatten(config_lib.get_config('default')), config_lib.INERT - {'rounds'}
    words = [
        f'--config.{key}={as_word(_without_folders(value))}'
        for key, value in config_lib.flatten(config).items()
        if key not in hidden and value != default.get(key)
    ]
    return {
        'output': name,
        'images': {'shape': list(dataset.outline.image), 'dtype': 'uint8', 'values': '0 to 255'},
        'outputs': outputs,
        'class_names': list(dataset.class_names),
        # of images divided by 255; the program applies it
        'normalization': {'mean': list(dataset.mean), 'std': list(dataset.std)},
        'algorithm': config.algorithm,
        'data': dataset.name,
        'round': number,
        'scores': scores,
        'scored_images': f'{"synthetic " if config.data.fake else ""}{config.data.eval_split}',
        'command': shlex.join(['semisfl', 'train', '--config=default', *words]),
        'platforms': list(PLATFORMS),
        'compiler_options': {'cpu': machine.CPU_OPTIONS},
        **{key: summary[key] for key in ('commit', 'versions') if key in summary},
    }


def _without_folders(value: Any) -> Any:
    """Returns the last part of an absolute path, and other values as they are."""
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value


def card(described: Mapping[str, Any]) -> str:
    """Writes the README.md of an exported model from its model.json, as Markdown."""
    images = described['images']
    made = described.get('commit', 'version unknown')
    scores = [
        f'- {key} in round {described["round"]}, {described["scored_images"]} images: {value:.4f}'
        for key, value in described['scores'].items()
        if isinstance(value, float)
    ]
    classes = ', '.join(described['class_names']) or 'not named by the data set'
    outputs = ', '.join(
        f'{name} [{", ".join(map(str, ["N", *array["shape"]]))}] of {array["dtype"]}'.lstrip()
        for name, array in described['outputs'].items()
    )
    return '\n'.join(
        [
            f'# {described["output"]} of {described["algorithm"]}, trained on {described["data"]}',
            '',
            f'Takes images [N, {", ".join(map(str, images["shape"]))}] of {images["dtype"]}, {images["values"]}, and '
            f'normalizes them itself; gives {outputs}. Equal to the models of the run: to the bit on a CPU of the kind '
            'that trained it, elsewhere up to rounding.',
            '',
            *scores,
            f'- classes, in the order of their numbers: {classes}',
            f'- made by semisfl_jax, {made if made.startswith("version") else f"commit {made}"}',
            '',
            'Load it (`pip install jax flatbuffers`):',
            '',
            '```python',
            f'{LOADER}```',
            '',
            'The run, in which settings that are not named have their defaults:',
            '',
            '```sh',
            described['command'],
            '```',
            '',
        ]
    )


def run(folders: list[Path], model: str = '', round: int = 0, best: bool = False) -> None:
    """Exports a model, and prints the files.

    Args:
      folders: of the run, and the one to write.
      model: name of an output, '' for the one that judges the method.
      round: number of a round, 0 for the last one saved.
      best: whether to take the checkpoint in best/ instead.

    Raises:
      UserError: as `export`, or there are not two folders.
    """
    if len(folders) != 2:
        raise UserError(f'{len(folders)} folders are named; write semisfl export RUN OUT')
    described = export(folders[0], folders[1], model, load.BEST if best else round or None)
    print(f'{described["output"]} of round {described["round"]}, with its README.md, in {folders[1]}')
