"""Greedy generation by the transformers package on a GPU (static cache, torch.compile), or a CPU, beside `cltrain generate`.

usage: torch_generate.py --cltrain PROGRAM [--cpu] [--folder DIR] [--layers N] [--tokens N] [--rounds N] [--json FILE]

Makes a Llama of the shape of Llama 3.2 1B with random weights in bf16 (--cpu: fp32, without compilation), or reads
--folder, and lets both continue a prompt of 64 tokens, in turn. A rate is that of the tokens after the first one. Bytes per second count every weight
once per token. With --batch also eight prompts together. Generated tokens are compared too: with random weights they
differ from the first near-tie on, so the number of equal ones says only that both compute the same model."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import need_torch
import torch

CPU = '--cpu' in sys.argv
if not CPU:
    need_torch.gpu()
DEVICE, TYPE, PRECISION = ('cpu', torch.float32, 'fp32') if CPU else ('cuda', torch.bfloat16, 'bf16')
import transformers  # noqa: E402  (after the message of need_torch)

PROMPT = 'The quick brown fox jumps over the lazy dog and keeps on running'


def make_folder(folder, layers):
    """Weights N(0, 0.02) except that the head is the embedding, as in Llama 3.2 1B."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
        head_dim=64, vocab_size=128256, max_position_embeddings=4096, tie_word_embeddings=True, rope_theta=500000.0,
        rms_norm_eps=1e-5)
    with torch.device(DEVICE):
        model = transformers.LlamaForCausalLM(config)
    model.to(TYPE).save_pretrained(folder)
    del model
    if not CPU:
        torch.cuda.empty_cache()


def ours(args, folder, prompts):
    """Tokens per second of `cltrain generate`, which prints them with -v."""
    with tempfile.NamedTemporaryFile('w', suffix='.jsonl') as f:
        for _ in range(prompts):
            f.write(json.dumps({'prompt': PROMPT}) + '\n')
        f.flush()
        command = args.cltrain.split() + ['generate', folder, '--tokenizer', 'bytes', '--precision', PRECISION, '-v', '-n',
                                          str(args.tokens), '--temperature', '0', '--prompts', f.name]
        run = subprocess.run(command, capture_output=True, text=True)
    said = re.search(r'after the first one ([0-9.]+) per second', run.stderr)
    if run.returncode or not said:
        raise SystemExit(f'cltrain generate: exit code {run.returncode}: {run.stderr[-2000:]}')
    return float(said.group(1))


def wait():
    if not CPU:
        torch.cuda.synchronize()


class Theirs:
    """On a GPU with a static cache generate compiles the forward pass itself, with CUDA graphs (its CompileConfig)."""

    def __init__(self, folder):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=TYPE).to(DEVICE).eval()
        if not CPU:
            self.model.generation_config.cache_implementation = 'static'

    def seconds(self, ids, tokens):
        wait()
        began = time.perf_counter()
        with torch.no_grad():
            self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                                do_sample=False, pad_token_id=0, eos_token_id=None)
        wait()
        return time.perf_counter() - began

    def rate(self, prompts, tokens):
        """From two lengths, so that the prompt does not count."""
        ids = torch.tensor([list(PROMPT.encode())] * prompts, device=DEVICE)
        short = tokens // 4
        self.seconds(ids, short)
        few, many = (min(self.seconds(ids, n) for _ in range(2)) for n in (short, tokens))
        return prompts * (tokens - short) / (many - few)


def bandwidth():
    """Bytes per second of a copy, read plus write, as clbench measures it; on a CPU of reading, if that is more."""
    a = torch.ones(1 << 28, dtype=torch.float32, device=DEVICE)
    b = torch.empty_like(a)
    if not CPU:
        import timing
        return 8 * a.numel() / timing.timed(lambda: b.copy_(a), 1.0)
    best = 0.0
    for bytes_moved, work in ((8 * a.numel(), lambda: b.copy_(a)), (4 * a.numel(), a.sum)):
        for _ in range(6):
            began = time.perf_counter()
            work()
            best = max(best, bytes_moved / (time.perf_counter() - began))
    return best


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument('--cltrain', default='build/cltrain', help='the program, with its first arguments')
    parse.add_argument('--cpu', action='store_true')
    parse.add_argument('--folder')
    parse.add_argument('--layers', type=int, default=16)
    parse.add_argument('--tokens', type=int, default=256)
    parse.add_argument('--rounds', type=int, default=3)
    parse.add_argument('--batch', action='store_true')
    parse.add_argument('--json')
    args = parse.parse_args()
    folder = args.folder or os.path.join(tempfile.mkdtemp(), 'llama')
    if not args.folder:
        make_folder(folder, args.layers)
    theirs = Theirs(folder)
    weights = sum(p.numel() for p in theirs.model.parameters())
    copy = bandwidth()
    rows = []
    for prompts in [1, 8] if args.batch else [1]:
        theirs.rate(prompts, args.tokens)  # compiles
        a, b = [], []
        for _ in range(args.rounds):
            a.append(ours(args, folder, prompts))
            b.append(theirs.rate(prompts, args.tokens))
        rate = statistics.median(a)
        rows.append({'prompts': prompts, 'cltrain': a, 'transformers': b, 'ratio': rate / statistics.median(b),
                     'bytes_per_second': rate / prompts * weights * TYPE.itemsize,
                     'of_copy': rate / prompts * weights * TYPE.itemsize / copy})
        print(f'{prompts} prompts, {weights / 1e9:.3f} billion weights: cltrain {[round(x, 1) for x in a]} tokens/s, '
              f'transformers {[round(x, 1) for x in b]}, ratio {rows[-1]["ratio"]:.3f}; '
              f'{rows[-1]["bytes_per_second"] / 1e9:.0f} GB/s of {copy / 1e9:.0f}: {rows[-1]["of_copy"]:.3f}', flush=True)
    if args.json:
        with open(args.json, 'w') as f:
            json.dump({'weights': weights, 'copy': copy, 'rows': rows, 'torch': torch.__version__,
                       'transformers': transformers.__version__}, f)


if __name__ == '__main__':
    main()
