"""Studies as the command reads them."""

from semisfl_jax.config import command_line
from tests import runs


def parse(name, scale, *words):
    """The parsed command line of a study."""
    return command_line.parse(
        ['launch.py', f'--config={runs.ROOT}/configs/studies/{name}.py:{scale}', *words], studies=True
    )


def study(name, scale):
    """Its definition."""
    return parse(name, scale).config.study
