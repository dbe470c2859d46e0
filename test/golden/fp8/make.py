#!/usr/bin/env python3
"""Writes casts.json and delayed.json of this folder: ml_dtypes' FP8 types, and delayed scaling in plain Python.

usage: make.py     needs numpy and ml_dtypes
"""
import hashlib
import json
import pathlib
import random
import struct

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).parent
TYPES = {'e4m3': ml_dtypes.float8_e4m3fn, 'e5m2': ml_dtypes.float8_e5m2,
         'e4m3fnuz': ml_dtypes.float8_e4m3fnuz, 'e5m2fnuz': ml_dtypes.float8_e5m2fnuz}


def saturated(x, kind):
    """Codes of fp32 values: clipped to the largest value, then cast by ml_dtypes."""
    top = np.float32(ml_dtypes.finfo(kind).max)
    with np.errstate(invalid='ignore'):   # NaN
        return np.clip(x, -top, top).astype(kind).view(np.uint8)


def of_bits(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def borders(kind, codes):
    """For each positive code the bits of the smallest fp32 value with it or a larger one, by bisection."""
    found = []
    for code in range(codes):
        low, high = 0, 0x7f800000
        while low < high:
            middle = (low + high) // 2
            if saturated(of_bits([middle]), kind)[0] >= code:
                high = middle
            else:
                low = middle + 1
        found.append(low)
    return found


def cast_tables():
    every = np.arange(65536, dtype=np.uint16)
    inputs = {'bf16': every.view(ml_dtypes.bfloat16), 'fp16': every.view(np.float16)}
    out = {}
    for name, kind in TYPES.items():
        decoded = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32).view(np.uint32)
        codes = int(saturated(of_bits([0x7f800000]), kind)[0]) + 1
        table = {'decode': decoded.tolist(), 'border': borders(kind, codes),
                 'nan': saturated(of_bits([0x7fc00000, 0xffc00000]), kind).tolist()}
        for source, values in inputs.items():
            encoded = saturated(values.astype(np.float32), kind)
            table['sha256_of_' + source] = hashlib.sha256(encoded.tobytes()).hexdigest()
        near = (np.array(table['border'])[:, None] + np.arange(-600, 601)).clip(0, 0x7f800000)
        near = np.concatenate([near, near + 0x80000000]).reshape(-1)
        table['sha256_near_borders'] = hashlib.sha256(saturated(of_bits(near), kind).tobytes()).hexdigest()
        out[name] = table
    return out


def fp32(v):
    try:
        return struct.unpack('<f', struct.pack('<f', v))[0]
    except OverflowError:
        return float('inf')


def delayed_step(history, scale, last, top, recent):
    """One update of one tensor, as Transformer Engine's recipe describes it: (history, scale)."""
    amax = last if recent else max(history[1:] + [last])
    if last != 0:
        history = history[1:] + [last]
        history[0] = 0.0
    if 0 < amax < float('inf'):
        scale = fp32(top / amax)
        scale = min(scale, 3.4028234663852886e38)
    return history, scale


def delayed_case(length, top, margin, recent, steps):
    rng, history, scale, rows = random.Random(length + margin), [0.0] * length, 1.0, []
    for step in range(steps):
        last = fp32(abs(rng.gauss(0, 1)) * 10.0**rng.randint(-10, 10))
        last = {5: 0.0, 11: float('inf'), 17: 1e-45, 18: 0.0, 23: 3.4e38}.get(step, last)
        history, scale = delayed_step(history, scale, fp32(last), fp32(top * 2.0**-margin), recent)
        bits = [struct.unpack('<I', struct.pack('<f', v))[0] for v in [fp32(last), scale] + history]
        rows.append(bits)
    return {'length': length, 'top': top, 'margin': margin, 'most_recent': recent, 'steps': rows}


def main():
    cases = [delayed_case(length, top, margin, recent, 40)
             for length, top, margin, recent in ((16, 448, 0, False), (16, 57344, 0, False), (4, 448, 2, False),
                                                 (2, 240, 0, False), (1, 448, 0, False), (3, 57344, 0, True))]
    for name, data in (('casts', cast_tables()), ('delayed', cases)):
        (HERE / f'{name}.json').write_text(json.dumps(data, separators=(',', ':')) + '\n')


if __name__ == '__main__':
    main()
