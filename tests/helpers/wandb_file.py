"""What the file holds that wandb leaves of a run when it is offline."""

BLOCK, HEADER, LAST = 2**15, 7, (1, 4)  # bytes; types of a chunk that ends a record: whole, or its last part


def records(path):
    """Returns the bytes of every record: chunks (CRC, length, type, content) that no block of LevelDB's log ends in."""
    content, at, found, parts = path.read_bytes(), HEADER, [], b''
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK  # padded
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], 'little'), content[at + 6]
        parts += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in LAST:
            found, parts = [*found, parts], b''
    return found
