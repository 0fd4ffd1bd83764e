"""Reader of wandb's records of an offline run, without wandb's own service."""

import json
import struct


def records(folder):
    """The records of an offline run in LevelDB's log format: 32 KiB blocks, fragments, protobuf."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, part = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, size, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or last of its fragments
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


def ended(folder):
    """Whether the offline run of a folder is complete."""
    return any(record.WhichOneof("record_type") == "exit" for record in records(folder))


def keyed(items):
    """{key: value} of a record's items, whose keys may be nested."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
