#!/usr/bin/env python3
"""Reads a cltrain checkpoint, written only from docs/checkpoint-format.md: no code of cltrain, no packages. Chunks are
decompressed by the zstd program. Used as an oracle by test/unit/ckpt_python.sh; also a start for tools of your own.

    read_checkpoint.py FOLDER                 one line per tensor: role, name, shape, SHA-256 of its bytes
    read_checkpoint.py FOLDER ROLE NAME OUT   writes one tensor's elements (fp32, little endian) to a file
"""
import hashlib
import json
import os
import subprocess
import sys


def state_of(folder):
    """The manifest without its last 45 bytes is what its hash covers (XXH3-128: not recomputed here)."""
    raw = open(os.path.join(folder, "manifest.json"), "rb").read()
    tail = raw[-45:]
    if not (tail.startswith(b',\n"xxh3":"') and tail.endswith(b'"}\n')):
        raise ValueError("the manifest is cut off")
    m = json.loads(raw)
    if m["format"] != "cltrain checkpoint" or m["version"] != 1:
        raise ValueError("not a checkpoint of version 1")
    return m


def decompress(frame):
    """One zstd frame; zstd checks its content checksum."""
    if frame[:4] != b"\x28\xb5\x2f\xfd" or not frame[4] & 4:
        raise ValueError("no zstd frame with a content checksum")
    return subprocess.run(["zstd", "-dcq"], input=frame, stdout=subprocess.PIPE, check=True).stdout


def tensors(folder):
    """Yields (role, name, shape, bytes) in the manifest's order."""
    m = state_of(folder)
    files = [open(os.path.join(folder, f["name"]), "rb") for f in m["files"]]
    for f, entry in zip(files, m["files"]):
        if os.fstat(f.fileno()).st_size != entry["bytes"]:
            raise ValueError(entry["name"] + " has another size")
    chunks = iter(m["chunks"])
    for index, t in enumerate(m["tensors"]):
        count = 1
        for n in t["shape"]:
            count *= n
        data = b""
        while len(data) < 4 * count:
            tensor, first, elements, file, offset, stored, _ = next(chunks)
            if tensor != index or 4 * first != len(data):
                raise ValueError("the chunks of " + t["name"] + " do not follow each other")
            files[file].seek(offset)
            part = decompress(files[file].read(stored))
            if len(part) != 4 * elements:
                raise ValueError("a chunk of " + t["name"] + " has another length")
            data += part
        yield t["role"], t["name"], t["shape"], data
    if next(chunks, None) is not None:
        raise ValueError("chunks are left")


def main(argv):
    if len(argv) == 2:
        for role, name, shape, data in tensors(argv[1]):
            print(role, name, "x".join(map(str, shape)), hashlib.sha256(data).hexdigest())
    elif len(argv) == 5:
        for role, name, _, data in tensors(argv[1]):
            if (role, name) == (argv[2], argv[3]):
                open(argv[4], "wb").write(data)
                return 0
        raise ValueError("there is no such tensor")
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
