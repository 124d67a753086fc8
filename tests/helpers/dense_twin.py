"""Encoders and decoders of dense tasks in NumPy, in float64, written after PyTorch's definitions.

Arrays are [B, H, W, C]; kernels are PyTorch's, [F, C, k, k].
"""

import itertools

import numpy as np

from tests.helpers import convolution


def convolve(x, kernel, stride=1, padding=0, dilation=1):
    return convolution.convolve(x, np.transpose(kernel, (2, 3, 1, 0)), padding, stride, dilation)


def max_pool(x):
    """3 x 3 with stride 2 and a border of -inf."""
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    height, width = ((length - 3) // 2 + 1 for length in x.shape[1:3])
    rows = [[x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((1, 2)) for j in range(width)] for i in range(height)]
    return np.array(rows).transpose(2, 0, 1, 3)


def resize(x, height, width):
    """PyTorch's interpolate, bilinear, align_corners=False: pixel by pixel."""
    out = np.zeros((x.shape[0], height, width, x.shape[3]))

    def place(index, old, new):
        position = max((index + 0.5) * old / new - 0.5, 0.0)
        low = int(position)
        return low, min(low + 1, old - 1), position - low

    for i, j in itertools.product(range(height), range(width)):
        top, bottom, down = place(i, x.shape[1], height)
        left, right, across = place(j, x.shape[2], width)
        upper = (1 - across) * x[:, top, left] + across * x[:, top, right]
        lower = (1 - across) * x[:, bottom, left] + across * x[:, bottom, right]
        out[:, i, j] = (1 - down) * upper + down * lower
    return out


def normalize(x, scale, bias, mean, var):
    """BatchNorm in evaluation."""
    return (x - mean) / np.sqrt(np.asarray(var, np.float64) + 1e-5) * scale + bias


def relu(x):
    return np.maximum(x, 0.0)


# --- torchvision's ResNet, from a state dict


def batch_norm(state, name, x):
    return normalize(x, *(state[f'{name}.{part}'] for part in ('weight', 'bias', 'running_mean', 'running_var')))


def block(state, name, x, bottleneck, stride, first_dilation, dilation):
    """torchvision's BasicBlock or Bottleneck. A BasicBlock has no dilation there: the first convolution gets that of
    the block, the second that of the stage, which is what doubling the dilation of all but the strided one gives."""

    def layer(index, x, **options):
        return batch_norm(state, f'{name}.bn{index}', convolve(x, state[f'{name}.conv{index}.weight'], **options))

    first = {'stride': stride, 'padding': first_dilation, 'dilation': first_dilation}
    if bottleneck:
        y = relu(layer(1, x))
        y = relu(layer(2, y, **first))
        y = layer(3, y)
    else:
        y = relu(layer(1, x, **first))
        y = layer(2, y, padding=dilation, dilation=dilation)
    if f'{name}.downsample.0.weight' in state:
        shortcut = convolve(x, state[f'{name}.downsample.0.weight'], stride=stride)
        x = batch_norm(state, f'{name}.downsample.1', shortcut)
    return relu(x + y)


def resnet(state, images, bottleneck, replace_stride_with_dilation):
    """Maps after each of the four stages."""
    x = relu(batch_norm(state, 'bn1', convolve(images, state['conv1.weight'], stride=2, padding=3)))
    x, dilation, maps = max_pool(x), 1, []
    for stage, dilate in enumerate((False, *replace_stride_with_dilation), start=1):
        stride, previous = (1 if stage == 1 else 2), dilation
        if dilate:
            dilation, stride = dilation * stride, 1
        index = 0
        while f'layer{stage}.{index}.conv1.weight' in state:
            name = f'layer{stage}.{index}'
            first = (stride, previous) if index == 0 else (1, dilation)
            x = block(state, name, x, bottleneck, *first, dilation)
            index += 1
        maps.append(x)
    return maps


def state_dict(rng, bottleneck, stem, widths, depths, channels=3, kernel=7):
    """A made-up one: weights near Kaiming's, statistics unlike those that a network starts with."""
    state = {}

    def layer(conv, norm, inputs, outputs, size):
        deviation = (2 / (size * size * inputs)) ** 0.5
        state[f'{conv}.weight'] = rng.normal(0, deviation, (outputs, inputs, size, size)).astype(np.float32)
        for part, low in (('weight', 0.5), ('bias', -0.5), ('running_mean', -0.5), ('running_var', 0.5)):
            state[f'{norm}.{part}'] = rng.uniform(low, low + 1, outputs).astype(np.float32)
        state[f'{norm}.num_batches_tracked'] = np.int64(7)

    layer('conv1', 'bn1', channels, stem, kernel)
    inputs = stem
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
        for index in range(depth):
            name, outputs = f'layer{stage}.{index}', width * (4 if bottleneck else 1)
            sizes = [(inputs, width, 1), (width, width, 3), (width, outputs, 1)]
            sizes = sizes if bottleneck else [(inputs, width, 3), (width, width, 3)]
            for number, size in enumerate(sizes, start=1):
                layer(f'{name}.conv{number}', f'{name}.bn{number}', *size)
            if index == 0 and (stage > 1 or inputs != outputs):
                layer(f'{name}.downsample.0', f'{name}.downsample.1', inputs, outputs, 1)
            inputs = outputs
    state['fc.weight'] = rng.normal(size=(10, inputs)).astype(np.float32)
    state['fc.bias'] = np.zeros(10, np.float32)
    return state


# --- DeepLab's decoders, from this package's variables


def layer(variables, path, x, **options):
    """Convolution, BatchNorm, ReLU."""
    parameters, statistics = variables['params'], variables['batch_stats']
    for part in path:
        parameters, statistics = parameters[part], statistics[part]
    y = convolve(x, np.asarray(parameters['kernel']).transpose(3, 2, 0, 1), **options)
    norm = {**parameters['norm'], **statistics['norm']}
    return relu(normalize(y, *(np.asarray(norm[part]) for part in ('scale', 'bias', 'mean', 'var'))))


def aspp(variables, path, x, rates):
    parts = [layer(variables, (*path, 'conv0'), x)]
    for index, rate in enumerate(rates, start=1):
        parts.append(layer(variables, (*path, f'conv{index}'), x, padding=rate, dilation=rate))
    pooled = layer(variables, (*path, 'pool'), x.mean((1, 2), keepdims=True))
    parts.append(resize(pooled, *x.shape[1:3]))
    return layer(variables, (*path, 'project'), np.concatenate(parts, -1))


def deeplabv3plus(variables, low, last, rates, height, width):
    x = resize(aspp(variables, ('aspp',), last, rates), *low.shape[1:3])
    x = np.concatenate([layer(variables, ('low_level',), low), x], -1)
    for name in ('conv1', 'conv2'):
        x = layer(variables, (name,), x, padding=1)
    head = variables['params']['head']
    x = convolve(x, np.asarray(head['kernel']).transpose(3, 2, 0, 1)) + np.asarray(head['bias'])
    return resize(x, height, width)
