#!/usr/bin/env python3
"""Trains the run of a YAML file through libcltrain with ctypes and draws its loss as an SVG picture.

    python3 plot_loss.py demo/run.yaml loss.svg max_duration=200ba
"""
import ctypes
import json
import sys

METRICS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
lib = ctypes.CDLL("libcltrain.so.0")
lib.cltrain_error_message.restype = ctypes.c_char_p


def check(status):
    if status != 0:
        raise RuntimeError(lib.cltrain_error_message().decode())


def train(config, settings):
    """The losses of all steps, in order."""
    losses = []

    @METRICS
    def on_metrics(_context, row):
        values = json.loads(row)
        if "loss" in values:
            losses.append(values["loss"])

    run = ctypes.c_void_p()
    check(lib.cltrain_run_create(ctypes.byref(run)))
    try:
        check(lib.cltrain_run_config_file(run, config.encode()))
        for setting in settings:
            check(lib.cltrain_run_set(run, setting.encode()))
        check(lib.cltrain_run_on_metrics(run, on_metrics, None))
        check(lib.cltrain_run_open(run))
        check(lib.cltrain_run_train(run, ctypes.c_int64(0)))
    finally:
        lib.cltrain_run_close(run)
    return losses


def draw(losses, path, width=640, height=360, margin=40):
    low, high = min(losses), max(losses)
    steps, span = max(len(losses) - 1, 1), max(high - low, 1e-9)
    points = " ".join(
        f"{margin + (width - 2 * margin) * i / steps:.1f},{margin + (height - 2 * margin) * (high - y) / span:.1f}"
        for i, y in enumerate(losses))
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
                f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
                f'<text x="{margin}" y="24">loss of {len(losses)} steps</text>'
                f'<text x="4" y="{margin + 4}">{high:.2f}</text><text x="4" y="{height - margin + 4}">{low:.2f}</text>'
                f'<polyline fill="none" stroke="#1f77b4" stroke-width="1.5" points="{points}"/></svg>\n')


if __name__ == "__main__":
    curve = train(sys.argv[1], sys.argv[3:])
    draw(curve, sys.argv[2])
    print(f"{len(curve)} steps, loss {curve[0]:.4f} to {curve[-1]:.4f}: {sys.argv[2]}")
