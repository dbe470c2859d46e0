"""The results of torch_formats.py: a JSON line per run, and a Markdown table of them."""
import json
import math
import os


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding='utf-8') as f:
        return [json.loads(line) for line in f if line.strip()]


def append(path, row):
    """One write, so that lines of processes that share the file stay whole."""
    with open(path, 'ab', buffering=0) as f:
        f.write((json.dumps(row) + '\n').encode())


def mean(v):
    return sum(v) / len(v)


def deviation(v):
    return math.sqrt(sum((x - mean(v))**2 for x in v) / (len(v) - 1)) if len(v) > 1 else math.nan


def number(v, form):
    return '-' if math.isnan(v) else format(v, form)


def verdict(loss, reference):
    """The rule: within 0.2 % of the mean of bf16, or within its spread (a standard deviation over seeds)."""
    above = mean(loss) - mean(reference)
    if above <= 0.002 * mean(reference):
        return 'within 0.2 %'
    return 'within spread' if len(reference) > 1 and above <= deviation(reference) else 'outside'


def line(spec, runs, reference):
    loss = [runs[s] for s in sorted(runs)]
    pairs = [100 * (runs[s] - reference[s]) / reference[s] for s in sorted(runs) if s in reference]
    cells = [spec, str(len(loss)), f'{mean(loss):.4f}', number(deviation(loss), '.4f'), '-', '-']
    if pairs and spec != 'bf16':
        # only seeds that both have: a missing seed must not look like a difference
        both = [s for s in runs if s in reference]
        cells[4] = f'{mean(pairs):+.3f} ± {number(deviation(pairs) / math.sqrt(len(pairs)), ".3f")}'
        cells[5] = verdict([runs[s] for s in both], [reference[s] for s in both])
    return f'| {" | ".join(cells)} |'


def markdown(rows, order):
    """Groups of runs that can be compared, formats in the given order and then by name."""
    def group_of(r):
        return r['params'], r['size'], r['steps'], r['batch'], r['seq'], r['lr']

    out = []
    for group in sorted({group_of(r) for r in rows}):
        mine = [r for r in rows if group_of(r) == group]
        names = sorted({r['format'] for r in mine}, key=lambda n: (order.index(n) if n in order else len(order), n))
        runs = {n: {r['seed']: r['final'] for r in mine if r['format'] == n} for n in names}
        out += [f'{group[1]}: {group[0] / 1e6:.1f} M parameters, {group[2]} steps of {group[3]} x {group[4]} tokens',
                '',
                '| format | seeds | validation loss | deviation | to bf16, % | verdict |', '|---|---|---|---|---|---|']
        out += [line(n, runs[n], runs.get('bf16', {})) for n in names] + ['']
    return '\n'.join(out).rstrip()
