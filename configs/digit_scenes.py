"""Scenes of digits on photographs, seven dense tasks: no download, minutes on 2 cores.

    python launch.py --config=configs/digit_scenes.py --config.algorithm=m_fed

2,000 training and 400 test scenes of 48x48, made in code from scikit-learn's digits and photographs, with the exact
truth of every task. Each task has five clients that divide its scenes; all of them are active in every round, for one
pass over their scenes. `algorithm` is 'm_fed', 'mfed_fl' (nothing is shared across tasks) or 'mfed_local' (nothing is
exchanged). Scenes are not flipped, because a mirrored digit is a different digit or no digit at all.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.algorithm = 'm_fed'
    config.rounds = 20
    config.eval_every = 5
    config.eval_batch_size = 100
    config.checkpoint_every = 10

    config.data.name = 'digit_scenes'
    config.data.tasks = ('semseg', 'parts', 'saliency', 'edges', 'depth', 'stuff', 'keypoints')
    config.data.client_labels = -1

    config.federation.num_clients = 35
    config.federation.num_active = 35
    config.federation.partition = 'uniform'

    config.model.name = 'scene_net'

    config.k_s = 0
    config.local.epochs = 1
    config.batch_size = 8
    config.optimizer = 'adam'
    config.nesterov = False
    config.lr = 3e-3
    config.lr_min = 3e-4
    config.lr_rounds = 0
    config.weight_decay = 0.0

    config.augment.flip = False
    config.augment.supervised = 'weak'
    return config
