#!/usr/bin/env python3
"""Collects the English prose of Debian packages as JSONL, a document per file: text for studies like torch_formats.py.

usage: prose.py OUT.jsonl [PACKAGE|FOLDER...]     without names: PACKAGES. Packages are downloaded and not installed.
       prose.py --pack SPLIT N MILLIONS OUT.xz    SPLIT: a folder of MDS shards with samples of N tokens

Reads HTML, reStructuredText, POD, manual pages, dictionaries and plain text. Keeps paragraphs that are mostly letters
and contain frequent English words, each only once. Prints what each package contributed.

--pack writes the token ids of samples as compressed uint16, at most so many millions, from evenly spread places:
  prose.py prose.jsonl
  cltrain data train-tokenizer prose.jsonl -V 8192 -o tokenizer
  cltrain data convert prose.jsonl --out mds -n 512 --tokenizer tokenizer --eos
  prose.py --pack mds/train 512 16 tokens.xz
"""
import array
import gzip
import html
import json
import lzma
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

PACKAGES = '''anarchism fortunes dict-gcide dict-foldoc dict-jargon linux-doc-6.1 python3.11-doc rust-doc
erlang-doc postgresql-doc-15 apache2-doc perl-doc vim-runtime git-doc libreoffice-help-en-us manpages manpages-dev
debian-policy developers-reference debian-reference-en debian-handbook aptitude-doc-en maint-guide harden-doc
python-django-doc python-scipy-doc sbcl-doc sqlite3-doc cmake-doc octave-doc nodejs-doc lilypond-doc-html r-doc-html
gnuplot-doc zsh-doc exim4-doc-html emacs-el'''.split()
FREQUENT = {'the', 'of', 'to', 'and', 'a', 'in', 'is', 'that', 'for', 'it', 'be', 'as', 'with', 'or', 'this', 'by'}
KINDS = re.compile(r'\.(html?|xhtml|rst|txt|pod|dict|info|md|el|[1-8])$|/games/fortunes/[a-z-]+$')
HTML = re.compile(r'\.x?html?$')
DROPPED = re.compile(r'<(script|style|pre|nav|head|table)\b.*?</\1>', re.S | re.I)
BREAK = re.compile(r'</?(p|div|li|dd|dt|dl|h\d|br|tr|td|section|blockquote)\b[^>]*>', re.I)


def plain(name, text):
    """The text of one file, its paragraphs divided by empty lines."""
    if HTML.search(name):
        text = BREAK.sub('\n\n', DROPPED.sub('\n\n', text))
        return html.unescape(re.sub(r'<[^>]*>', '', text))
    if re.search(r'\.[1-8]$', name):
        text = re.sub(r"(?m)^[.'](PP|P|LP|TP|IP|SH|SS)\b.*$", '\n', text)
        text = re.sub(r"(?m)^[.']\\\".*$", '', text)
        text = re.sub(r"(?m)^[.'][A-Za-z]+ *", '', text)
        return re.sub(r'\\(f[A-Z]|f\([A-Z]{2}|&|-)', lambda m: '-' if m[1] == '-' else '', text)
    if name.endswith('.pod'):
        return re.sub(r'[A-Z]<+ ?([^<>]*?) ?>+', r'\1', re.sub(r'(?m)^=\w+ ?', '\n', text))
    if name.endswith('.el'):
        return '\n\n'.join(re.sub(r'(?m)^;+ ?', '', c) for c in re.findall(r'(?:^;+.*\n){4,}', text, re.M))
    return text


def prose(text, seen):
    kept = []
    for paragraph in re.split(r'\n\s*\n', text):
        paragraph = ' '.join(paragraph.split())
        if len(paragraph) < 80:
            continue
        letters = sum(c.isalpha() or c in " ,.;:'" for c in paragraph)
        words = paragraph.lower().split()
        frequent = sum(w in FREQUENT for w in words)
        key = hash(paragraph)
        if letters < 0.92 * len(paragraph) or frequent < 0.15 * len(words) or not paragraph.isascii() or key in seen:
            continue
        seen.add(key)
        kept.append(paragraph)
    return '\n\n'.join(kept)


def collect(root, out, seen):
    files = total = 0
    for path in sorted(p for p in pathlib.Path(root).rglob('*') if p.is_file() and not p.is_symlink()):
        name = re.sub(r'\.(gz|dz)$', '', str(path))
        if not KINDS.search(name):
            continue
        data = path.read_bytes()
        if str(path).endswith(('.gz', '.dz')):
            data = gzip.decompress(data)
        text = prose(plain(name, data.decode('utf-8', 'replace')), seen)
        if len(text) >= 400:
            out.write(json.dumps({'text': text}) + '\n')
            files, total = files + 1, total + len(text)
    return files, total


def samples(split, size):
    """The tokens of every sample of size tokens, as int32 bytes: an MDS sample ends with them."""
    for info in json.loads((split / 'index.json').read_text())['shards']:
        data = (split / info['raw_data']['basename']).read_bytes()
        count, = struct.unpack_from('<I', data)
        ends = struct.unpack_from(f'<{count + 1}I', data, 4)[1:]
        yield from (data[end - 4 * size:end] for end in ends)


def pack(split, size, millions, out):
    tokens = list(samples(pathlib.Path(split), size))
    group = 16384 // size   # consecutive samples that stay together
    groups = [tokens[i:i + group] for i in range(0, len(tokens), group)]
    wanted = min(len(groups), int(millions * 1e6) // (group * size))
    groups = [groups[i * len(groups) // wanted] for i in range(wanted)]
    ids = array.array('H', array.array('i', b''.join(s for g in groups for s in g)))
    with lzma.open(out, 'wb', preset=6) as f:
        f.write(ids.tobytes())
    print(f'{len(ids)} of {len(tokens) * size} tokens, {pathlib.Path(out).stat().st_size} bytes')


def main():
    if sys.argv[1:2] == ['--pack'] and len(sys.argv) == 6:
        return pack(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    if len(sys.argv) < 2 or sys.argv[1].startswith('-'):
        raise SystemExit(__doc__)
    seen, total = set(), 0
    with open(sys.argv[1], 'w', encoding='utf-8') as out:
        for package in sys.argv[2:] or PACKAGES:
            if pathlib.Path(package).is_dir():
                files, size = collect(package, out, seen)
                print(f'{package}: {files} files, {size} bytes', flush=True)
                total += size
                continue
            with tempfile.TemporaryDirectory() as work:
                got = subprocess.run(['apt-get', '-qq', 'download', package], cwd=work, capture_output=True, text=True)
                for deb in pathlib.Path(work).glob('*.deb'):
                    subprocess.run(['dpkg-deb', '-x', deb.name, '.'], cwd=work, check=True)
                files, size = collect(work, out, seen)
                missing = f' ({got.stderr.strip()})' if got.returncode else ''
                print(f'{package}: {files} files, {size} bytes{missing}', flush=True)
                total += size
    print(f'{total} bytes of prose')


if __name__ == '__main__':
    main()
