"""The sides of the comparison: what each installs, and on which Python."""

from __future__ import annotations

from typing import NamedTuple

TORCH, TORCHVISION = 'torch==2.13.0', 'torchvision==0.28.0'


class Peer(NamedTuple):
    """A side. Its module is benchmarks/peers/side_NAME.py, or with the name NAME_MODE that of NAME, which gets MODE."""

    name: str
    title: str
    package: str  # whose version is shown
    requirements: tuple[str, ...] = ()  # for pip; () of this project, which runs in the environment it is in
    pythons: tuple[str, ...] = ('3.11', '3.12')  # it is known to install on; the first one found is used

    @property
    def home(self) -> str:
        """The peer whose environment and module it uses."""
        return self.name.partition('_')[0]

    @property
    def mode(self) -> str:
        """The module's third argument."""
        return self.name.partition('_')[2]


OURS = Peer('ours', 'this project', 'semisfl-jax')
# 3.0 needs Python 3.14
BLAZEFL = Peer(
    'blazefl',
    'BlazeFL',
    'blazefl',
    (TORCH, TORCHVISION, 'blazefl[contrib,reproducibility]==2.0.3'),
    pythons=('3.12', '3.13'),
)
PEERS = (
    Peer('pytorch', 'PyTorch loop', 'torch', (TORCH, TORCHVISION, 'numpy')),
    # 1.42 wants newer certificates than every machine has
    Peer('flower', 'Flower', 'flwr', (TORCH, 'numpy', 'flwr[simulation]==1.41.0', 'ray==2.55.1')),
    BLAZEFL,
    BLAZEFL._replace(name='blazefl_processes', title='BlazeFL, processes'),
    Peer('pfl', 'pfl', 'pfl', (TORCH, 'pfl==0.6.0')),
    # jax 0.6 has no jax.tree_map
    Peer('fedjax', 'FedJAX', 'fedjax', ('fedjax==0.0.17', 'jax==0.5.3', 'jaxlib==0.5.3')),
    Peer('fluke', 'fluke', 'fluke-fl', (TORCH, 'fluke-fl==0.8.1')),
)
ALL = {peer.name: peer for peer in (OURS, *PEERS)}
