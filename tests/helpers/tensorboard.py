"""What the TensorBoard files of a run hold."""

from tensorboardX.proto import event_pb2


def events(folder):
    """Returns (step, tag, value) of every scalar of a run, and the steps from which its files purge."""
    scalars, purges = [], []
    for path in sorted((folder / 'tensorboard').iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content, at = path.read_bytes(), 0
        while at < len(content):  # TFRecord: length, CRC, payload, CRC
            length = int.from_bytes(content[at : at + 8], 'little')
            event = event_pb2.Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            purges += [event.step] if event.HasField('session_log') else []
    return scalars, purges
