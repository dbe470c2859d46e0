#!/usr/bin/env python3
"""Decodes, crops, resizes and normalises a folder of classes with Pillow and NumPy, as torchvision's transforms do,
and with clbench pictures, alternately and on one thread each; prints pictures per second of CPU time and their ratio.

    tools/anchors/pillow_images.py FOLDER [--passes N] [--clbench build/clbench]
    tools/anchors/pillow_images.py --make FOLDER     # 200 JPEGs of 500 x 375, about 65 KB each
"""
import argparse
import glob
import json
import math
import os
import random
import subprocess
import time

import numpy as np
from PIL import Image

SIZE = 224
MEAN = np.array((0.485, 0.456, 0.406), np.float32)[:, None, None]
STD = np.array((0.229, 0.224, 0.225), np.float32)[:, None, None]


def make(folder):
    rng = np.random.default_rng(1)
    for c in range(4):
        os.makedirs(f"{folder}/c{c}", exist_ok=True)
        for i in range(50):
            small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
            large = np.asarray(small.resize((500, 375), Image.BICUBIC)) + rng.normal(0, 9, (375, 500, 3))
            Image.fromarray(large.clip(0, 255).astype(np.uint8)).save(f"{folder}/c{c}/{i:03}.jpg", quality=88)


def tensor(image):
    return (np.asarray(image).transpose(2, 0, 1).astype(np.float32) / np.float32(255) - MEAN) / STD


def train(image):
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        w = h = min(width, height)
    x, y = random.randint(0, width - w), random.randint(0, height - h)
    image = image.crop((x, y, x + w, y + h)).resize((SIZE, SIZE), Image.BICUBIC)
    return tensor(image.transpose(Image.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image)


def evaluate(image):
    width, height = image.size
    short = int(SIZE / 0.875)
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    x, y = round((size[0] - SIZE) / 2), round((size[1] - SIZE) / 2)
    return tensor(image.resize(size, Image.BICUBIC).crop((x, y, x + SIZE, y + SIZE)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clbench", default="build/clbench")
    args = parser.parse_args()
    if args.make:
        make(args.folder)
        return
    files = sorted(glob.glob(args.folder + "/*/*"))
    for name, transform, option in (("train", train, []), ("eval", evaluate, ["--eval"])):
        best = {"Pillow": 0, "cltrain": 0}
        for _ in range(args.passes):
            start = time.process_time()
            for path in files:
                with Image.open(path) as image:
                    transform(image.convert("RGB"))
            best["Pillow"] = max(best["Pillow"], len(files) / (time.process_time() - start))
            lines = subprocess.run([args.clbench, "pictures", args.folder, "--threads", "1", "--passes", "2", *option],
                                   check=True, capture_output=True, text=True).stdout.splitlines()
            best["cltrain"] = max([best["cltrain"]] + [json.loads(line)["per_cpu_s"] for line in lines])
        print(f"{name}: Pillow {best['Pillow']:.0f}, cltrain {best['cltrain']:.0f} pictures per second of CPU time, "
              f"ratio {best['cltrain'] / best['Pillow']:.2f}")


if __name__ == "__main__":
    main()
