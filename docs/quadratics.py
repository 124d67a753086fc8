"""Draws docs/quadratics.png: what Fed-SHVR and its ablations reach on clients with quadratic losses.

    python docs/quadratics.py [FILE]

The clients are those of tests/helpers/quadratics.py; tests/algorithms/test_fed_shvr.py compares them with minimizers in
closed form.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from semisfl_jax import algorithms  # noqa: E402
from semisfl_jax.algorithms.fed_shvr import build  # noqa: E402
from semisfl_jax.lab.plots import style  # noqa: E402
from tests.helpers import quadratics  # noqa: E402

ROUNDS = 60
NAMES = {'Fed-SHVR': 'fed_shvr', 'Fed-SVR': 'fed_svr', 'Fed-SH': 'fed_sh', 'FedAvg': 'fedavg'}


def main(path: Path) -> None:
    """Writes the picture."""
    by_steps = quadratics.WEIGHTS * np.array(quadratics.STEPS)
    targets = {
        r'$\sum_k\omega_kF_k$': quadratics.minimizer(quadratics.WEIGHTS),
        r'$\sum_k\omega_k\tau_kF_k$': quadratics.minimizer(by_steps),
    }
    paths = {name: quadratics.path(build, form, ROUNDS) for name, form in quadratics.FORMS.items()}
    with style.context():
        figure, panels = style.figure(columns=2, width='page', height=2.4)
        for ax, (title, target) in zip(panels, targets.items(), strict=True):
            for name, points in paths.items():
                look = algorithms.get(NAMES[name]).look
                distance = np.linalg.norm(points - target, axis=1)
                ax.plot(distance, label=name, color=look.color, linestyle=look.dash)
            ax.set_yscale('log')
            ax.set_xlabel('Round')
            ax.set_title(f'to the minimizer of {title}')
        panels[0].set_ylabel('Distance of the model')
        panels[0].sharey(panels[1])
        panels[0].legend(loc='center right')
        path.write_bytes(style.content(figure, path.suffix.removeprefix('.'), dpi=200))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'file', nargs='?', type=Path, default=Path(__file__).with_suffix('.png'), help='where to draw it'
    )
    main(parser.parse_args().file)
