#!/usr/bin/env python3
"""Encodes a text file with the package `tokenizers` and with clbench tokenize, alternately and on one thread
each; prints both speeds, their ratio, and the number of documents whose ids differ.

    tools/anchors/tokenizers_encode.py FILE TOKENIZER.json [--passes N] [--clbench build/clbench]
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402

DOCUMENT = 8192


def documents(data):
    """The documents of clbench tokenize: each ends at the first line end after DOCUMENT bytes."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at + DOCUMENT) + 1 if len(data) - at > DOCUMENT else len(data)
        end = end or len(data)
        yield data[at:end].decode()
        at = end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("tokenizer")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clbench", default="build/clbench")
    args = parser.parse_args()
    data = open(args.file, "rb").read()
    texts = list(documents(data))
    package = tokenizers.Tokenizer.from_file(args.tokenizer)
    best = {"package": 0.0, "cltrain": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        ids = os.path.join(folder, "ids")
        command = [args.clbench, "tokenize", args.file, "--tokenizer", args.tokenizer, "--ids", ids, "--passes", "2"]
        for _ in range(args.passes):
            start = time.perf_counter()
            want = [package.encode(t, add_special_tokens=False).ids for t in texts]
            best["package"] = max(best["package"], len(data) / (time.perf_counter() - start) / 1e6)
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            best["cltrain"] = max([best["cltrain"]] + [json.loads(line)["mb_per_s"] for line in lines])
        got = memoryview(open(ids, "rb").read()).cast("i")
    at = different = 0
    for document in want:
        different += got[at : at + len(document)].tolist() != document
        at += len(document)
    different += at != len(got)
    print(f"package tokenizers {tokenizers.__version__}: {best['package']:.2f} MB/s, cltrain: {best['cltrain']:.2f} "
          f"MB/s, ratio {best['cltrain'] / best['package']:.2f}; {different} of {len(texts)} documents differ")


if __name__ == "__main__":
    main()
