#!/usr/bin/env python3
"""randaugment.json: what Pillow makes of the operations of torchvision's RandAugment.

Needs Pillow and numpy. The operations and magnitudes are those of torchvision 0.29.2 (transforms/autoaugment.py,
_apply_op and RandAugment; functional.py, affine), which calls Pillow for pictures of Pillow; the magnitudes are
rounded to fp32, as a tensor keeps them. Each digest is the sha256 of the results of all levels 0 ... 30, for
operations with a sign of both signs of each, one behind the other."""
import hashlib, json, math
import numpy as np
import PIL
from PIL import Image, ImageEnhance, ImageOps

LEVELS = 31
PICTURES = [("noise", 37, 37), ("smooth", 48, 32), ("flat", 16, 16), ("smooth", 224, 224), ("noise", 3, 2)]


def picture(kind, width, height):
    """The pictures of test_image_augment.c."""
    out, x = bytearray(), 1
    for j in range(height):
        for i in range(width):
            for c in range(3):
                x = (x * 1664525 + 1013904223) % 2**32
                out.append({"noise": x >> 24,
                            "smooth": (60 + i * 120 // width, i * j % 251, (i * i + 3 * j * j) // width % 256)[c],
                            "flat": (77, 10 if i < 5 else 200, i + j)[c]}[kind])
    return Image.frombytes("RGB", (width, height), bytes(out))


def affine(img, translate, shear, center):
    """torchvision's affine with angle 0 and scale 1."""
    sx, sy = (math.radians(s) for s in shear)
    (cx, cy), (tx, ty) = center, translate
    a = math.cos(-sy) / math.cos(sy)
    b = -math.cos(-sy) * math.tan(sx) / math.cos(sy) - math.sin(0.0)
    c = math.sin(-sy) / math.cos(sy)
    d = -math.sin(-sy) * math.tan(sx) / math.cos(sy) + math.cos(0.0)
    m = [d, -b, 0.0, -c, a, 0.0]
    m[2] += m[0] * (-cx - tx) + m[1] * (-cy - ty)
    m[5] += m[3] * (-cx - tx) + m[4] * (-cy - ty)
    m[2] += cx
    m[5] += cy
    return img.transform(img.size, Image.Transform.AFFINE, m, Image.Resampling.NEAREST)


def shear(img, x, y):
    return affine(img, (0, 0), [math.degrees(math.atan(v)) for v in (x, y)], (0, 0))


def translate(img, x, y):
    return affine(img, (int(x), int(y)), (0.0, 0.0), (img.width * 0.5, img.height * 0.5))


def enhance(kind):
    return lambda img, m: kind(img).enhance(1.0 + m)


def side(i):
    return lambda img: 150.0 / 331.0 * img.size[i]


# name: (largest magnitude, or one for each level; signed; operation)
OPERATIONS = {
    "Identity": (0.0, False, lambda img, m: img),
    "ShearX": (0.3, True, lambda img, m: shear(img, m, 0.0)),
    "ShearY": (0.3, True, lambda img, m: shear(img, 0.0, m)),
    "TranslateX": (side(0), True, lambda img, m: translate(img, m, 0)),
    "TranslateY": (side(1), True, lambda img, m: translate(img, 0, m)),
    "Rotate": (30.0, True, lambda img, m: img.rotate(m, Image.Resampling.NEAREST, False, None)),
    "Brightness": (0.9, True, enhance(ImageEnhance.Brightness)),
    "Color": (0.9, True, enhance(ImageEnhance.Color)),
    "Contrast": (0.9, True, enhance(ImageEnhance.Contrast)),
    "Sharpness": (0.9, True, enhance(ImageEnhance.Sharpness)),
    "Posterize": ([8 - round(k / 7.5) for k in range(LEVELS)], False,
                  lambda img, m: ImageOps.posterize(img, int(m))),
    "Solarize": ([255.0 - 8.5 * k for k in range(LEVELS)], False, lambda img, m: ImageOps.solarize(img, m)),
    "AutoContrast": (0.0, False, lambda img, m: ImageOps.autocontrast(img)),
    "Equalize": (0.0, False, lambda img, m: ImageOps.equalize(img)),
}


def digest(img, most, signed, apply):
    h = hashlib.sha256()
    for level in range(LEVELS):
        m = most[level] if isinstance(most, list) else (most(img) if callable(most) else most) * level / 30
        for sign in (1.0, -1.0) if signed else (1.0,):
            h.update(apply(img, sign * float(np.float32(m))).tobytes())
    return h.hexdigest()


print(json.dumps({"pillow": PIL.__version__, "pictures": [
    {"kind": kind, "width": w, "height": h,
     "sha256": {name: digest(picture(kind, w, h), *op) for name, op in OPERATIONS.items()}}
    for kind, w, h in PICTURES]}, indent=1))
