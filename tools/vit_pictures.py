"""The pictures of vit_demo.sh: FOLDER/{train,test}/CLASS/NNNN.png, of 32 x 32 pixels. Needs only Python's library.
    vit_pictures.py FOLDER digits WHEEL   the handwritten digits in the wheel of scikit-learn, every fifth for the test
    vit_pictures.py FOLDER shapes         1,800 generated pictures of six shapes, the same on every machine"""
import gzip, math, pathlib, random, struct, sys, zipfile, zlib

SIDE = 32


def png(pixels, channels):
    """A PNG of SIDE x SIDE pixels of 8 bits; channels: 1 (grey) or 3 (RGB)."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    row = SIDE * channels
    lines = b"".join(b"\0" + bytes(pixels[y * row:(y + 1) * row]) for y in range(SIDE))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def digits(wheel):
    """Rows of 8 x 8 values from 0 to 16 and the digit; the pixels between the values are interpolated linearly."""
    at = [min(7, max(0, (i + 0.5) / 4 - 0.5)) for i in range(SIDE)]
    with zipfile.ZipFile(wheel) as archive:
        text = gzip.decompress(archive.read("sklearn/datasets/data/digits.csv.gz")).decode()
    for line in text.split():
        *value, digit = (int(float(v)) for v in line.split(","))
        line = lambda y, x: value[8 * y + int(x)] * (1 - x % 1) + value[8 * y + min(7, int(x) + 1)] * (x % 1)
        point = lambda y, x: line(int(y), x) * (1 - y % 1) + line(min(7, int(y) + 1), x) * (y % 1)
        yield str(digit), png([min(255, int(16 * point(y, x))) for y in at for x in at], 1)


SHAPES = {  # whether the point (x, y) belongs to the shape, which reaches to about 1 from the origin
    "circle": lambda x, y: x * x + y * y < 0.8,
    "ring": lambda x, y: 0.4 < x * x + y * y < 1,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.75,
    "plus": lambda x, y: min(abs(x), abs(y)) < 0.28 and max(abs(x), abs(y)) < 1,
    "triangle": lambda x, y: -0.6 < y < 1 - 1.9 * abs(x),
    "bars": lambda x, y: 0.3 < abs(x) < 0.75 and abs(y) < 0.8,
}


def shapes():
    """Any place, size, angle and colours, with noise."""
    rng = random.Random(17)
    for i in range(1800):
        name = list(SHAPES)[i // 5 % len(SHAPES)]
        size, angle = rng.uniform(8, 14), rng.uniform(-0.4, 0.4)
        cx, cy = rng.uniform(size, SIDE - size), rng.uniform(size, SIDE - size)
        back = [rng.randrange(0, 110) for _ in range(3)]
        front = [rng.randrange(140, 256) for _ in range(3)]
        c, s = math.cos(angle) / size, math.sin(angle) / size
        pixels = []
        for y in range(SIDE):
            for x in range(SIDE):
                u, v = x + 0.5 - cx, cy - y - 0.5
                color = front if SHAPES[name](c * u - s * v, s * u + c * v) else back
                pixels += [min(255, max(0, k + rng.randrange(-20, 21))) for k in color]
        yield name, png(pixels, 3)


def main():
    folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
    for i, (label, data) in enumerate(digits(sys.argv[3]) if kind == "digits" else shapes()):
        path = folder / ("test" if i % 5 == 0 else "train") / label
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{i:04}.png").write_bytes(data)


main()
