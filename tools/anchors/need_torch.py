"""Import this before torch: without PyTorch the program exits with a one-line error, and --help still works.

gpu() exits if PyTorch has no GPU; usage() prints the program's docstring and exits."""
import importlib.util
import sys

import __main__


def usage(code):
    print((__main__.__doc__ or '').strip(), file=sys.stderr if code else sys.stdout)
    sys.exit(code)


def gpu():
    import torch
    if not torch.cuda.is_available() and not asks_for_help:
        sys.exit(f'{sys.argv[0]}: PyTorch {torch.__version__} finds no GPU')


there = importlib.util.find_spec('torch') is not None
asks_for_help = '-h' in sys.argv or '--help' in sys.argv
if asks_for_help and not (there and 'argparse' in sys.modules):
    usage(0)
if not there:
    sys.exit(f'{sys.argv[0]}: {sys.executable} has no PyTorch (pip install torch)')
