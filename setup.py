"""Installs semisfl_jax. Ranges cover the versions that were tested."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(r"__version__ = '(.*)'", Path('semisfl_jax/__init__.py').read_text(encoding='utf-8'))[1]
REPOSITORY = 'https://example.org/semisfl_jax'  # until it has an address
README = Path(__file__).with_name('README.md').read_text(encoding='utf-8')
# Where the package is installed, configs/ takes the place of semisfl_jax/configs/, which leads to it in a checkout.
CONFIGS = {'semisfl_jax.configs': 'configs'}
CONFIGS |= {f'semisfl_jax.configs.{name}': f'configs/{name}' for name in ('studies', 'sweeps')}
COCO = ['pycocotools>=2.0.10,<3']
DOCS = ['math-core>=0.9,<0.10', 'myst-nb>=1.4,<2', 'sphinx>=9,<10', 'sphinx-book-theme>=1.4,<2']
HUGGING_FACE = ['datasets>=5,<6']
LAUNCHER = ['submitit>=1.5,<2']
# Reports of studies and sweeps
STUDIES = ['markdown-it-py>=3,<5', 'statsmodels>=0.14,<0.16']

setup(
    name='semisfl-jax',
    version=VERSION,
    description='Federated learning with few labels in JAX: 17 methods, same splits and seeds, paired statistics',
    # Outside the repository, links and pictures need its address
    long_description=re.sub(r'(\]\(|src=")(?!https?:|#)', rf'\1{REPOSITORY}/raw/main/', README),
    long_description_content_type='text/markdown',
    author='The semisfl_jax developers',
    url=REPOSITORY,
    license='MIT',
    python_requires='>=3.11',
    classifiers=[f'Programming Language :: Python :: 3.{minor}' for minor in (11, 12, 13)],  # those that were tried
    packages=sorted({*find_packages(include=['semisfl_jax', 'semisfl_jax.*']), *CONFIGS}),
    package_dir=CONFIGS,
    package_data={'semisfl_jax': ['py.typed']},
    entry_points={'console_scripts': ['semisfl = semisfl_jax.__main__:main']},
    install_requires=[
        'absl-py>=2.1,<3',
        'array_record>=0.8,<0.9',
        'chex>=0.1.90,<0.2',
        'etils>=1.12,<2',
        'filelock>=4.3,<5',
        'flatbuffers>=25,<26',  # jax.export uses it without saying so
        'flax>=0.12,<0.13',
        'importlib_resources>=6',  # tensorflow-datasets 4.9 uses it without saying so
        'jax>=0.10,<0.12',
        'ml_collections>=1.0,<2',
        'numpy>=2.0,<3',
        'optax>=0.2.5,<0.3',
        'orbax-checkpoint>=0.11.30,<0.13',
        'pandas>=2.2,<4',
        'pillow>=11,<14',
        'safetensors>=0.5,<1',
        'scikit-learn>=1.5,<2',
        'scipy>=1.13,<2',
        'tensorboardX>=2.6.2.2,<3',
        'tensorflow-datasets>=4.9.10,<5',  # 4.9.9 fails with protobuf 7
        'threadpoolctl>=3.1,<4',
        'tqdm>=4.66,<5',
    ],
    extras_require={
        'test': [
            'hypothesis>=6,<7',
            'ipykernel>=6.29,<8',
            'matplotlib>=3.9,<4',
            'mypy==2.4.1',
            'nbclient>=0.10.2,<0.12',
            'nbformat>=5.10,<6',
            'optuna>=5,<6',
            'pytest>=9,<10',
            'pytest-xdist>=3.6,<4',
            'ruff==0.17.5',
            *COCO,
            *DOCS,
            *HUGGING_FACE,
            *LAUNCHER,
            *STUDIES,
        ],
        'coco': COCO,
        'docs': DOCS,
        'plots': ['matplotlib>=3.9,<4', *STUDIES],
        'sweeps': ['matplotlib>=3.9,<4', 'optuna>=5,<6', *STUDIES],
        'datasets': HUGGING_FACE,
        'launcher': LAUNCHER,
        # sqlalchemy and alembic: MLflow's database, which the skinny one comes without
        'trackers': ['alembic>=1.13,<2', 'mlflow-skinny>=3,<4', 'sqlalchemy>=2,<3', 'wandb>=0.20,<1'],
        'prepare': ['tensorflow>=2.18'],
        # compilers for devices that are not there, each in an environment of its own (docs/devices.md)
        'preview-tpu': ['jax[tpu]>=0.10,<0.12'],
        'preview-cuda': ['jax[cuda13]>=0.10,<0.12'],
        'benchmark': ['matplotlib>=3.9,<4', 'torch>=2.8,<3'],
    },
)
