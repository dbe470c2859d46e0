"""Simulated hosts for launch_numa.sh: prints a line for each case whose plan breaks a rule, and a count.

A host is a list of NUMA nodes; a node is a list of cores; a core is a list of CPUs. hwloc reads it from a file
(HWLOC_XMLFILE) or from a description (HWLOC_SYNTHETIC). The rules below are checked on what `cltrain launch
--dry-run` prints, not computed by the program's steps.
"""
import itertools, os, re, subprocess, sys

program, folder = sys.argv[1:3]
failed = done = 0


def bits(cpus):
    value = sum(1 << c for c in cpus)
    words = []
    while value or not words:
        words.insert(0, "0x%08x" % (value & 0xFFFFFFFF))
        value >>= 32
    return ",".join(words)


def xml(nodes, allowed, empty_nodes):
    """The file of a host with these nodes, of which only some CPUs are allowed; empty nodes have memory only."""
    number = itertools.count(1)
    everything = [c for n in nodes for core in n for c in core]
    all_nodes = range(len(nodes) + empty_nodes)

    def sets(cpus, memory):
        return ('cpuset="%s" complete_cpuset="%s" nodeset="%s" complete_nodeset="%s" gp_index="%d"'
                % (bits(cpus), bits(cpus), bits(memory), bits(memory), next(number)))

    def memory(index, cpus):
        return '<object type="NUMANode" os_index="%d" %s local_memory="1073741824"/>' % (index, sets(cpus, [index]))

    out = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">', '<topology version="2.0">',
           '<object type="Machine" os_index="0" allowed_cpuset="%s" allowed_nodeset="%s" %s>'
           % (bits(allowed), bits(all_nodes), sets(everything, all_nodes))]
    out += [memory(len(nodes) + i, everything) for i in range(empty_nodes)]
    for index, node in enumerate(nodes):
        cpus = [c for core in node for c in core]
        out += ['<object type="Package" os_index="%d" %s>' % (index, sets(cpus, [index])), memory(index, cpus)]
        for core in node:
            out += ['<object type="Core" os_index="%d" %s>' % (core[0], sets(core, [index]))]
            out += ['<object type="PU" os_index="%d" %s/>' % (c, sets([c], [index])) for c in core]
            out += ["</object>"]
        out += ["</object>"]
    return "\n".join(out + ["</object>", "</topology>", ""])


def plan(environment, ranks):
    """[(nodes, CPUs, threads)] of the ranks, and their number."""
    words = [program, "launch", "--launcher", "mpirun", "--dry-run", "--device", "pocl"] + (["-n", str(ranks)] if ranks else [])
    text = subprocess.run(words + ["clbench", "allreduce"], env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE).stdout
    spread = lambda s: [i for part in s.split(",") for i in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
    lines = re.findall(r"^rank \d+: node (\S+), CPUs (\S+), threads (\d+)$", text, re.M)
    count = re.search(r"^ranks: (\d+)$", text, re.M)
    return [(spread(n), set(spread(c)), int(t)) for n, c, t in lines], int(count.group(1)) if count else 0


def broken_rule(hosts_nodes, ranks, shares, count):
    """hosts_nodes: {number: its allowed cores}. Returns what is wrong, or None."""
    most = max(map(len, hosts_nodes.values()))
    nodes = {k: v for k, v in hosts_nodes.items() if 2 * len(v) >= most}
    total = sum(map(len, nodes.values()))
    cpus = {c for cores in nodes.values() for core in cores for c in core}
    want = ranks or len(nodes)
    if count != want:
        return "%d ranks, not %d" % (count, want)
    if want == 1 or (len(nodes) == 1 and want > total):
        return "nothing to divide, but bound" if shares else None
    if len(shares) != want:
        return "%d of %d ranks are bound" % (len(shares), want)
    if set().union(*(s[1] for s in shares)) != cpus:
        return "CPUs are idle, or not allowed"
    members = {k: [s for s in shares if k in s[0]] for k in nodes}
    for numbers, mine, threads in shares:
        if mine - {c for k in numbers for core in nodes[k] for c in core}:
            return "CPUs of another node"
        if threads > len([c for k in numbers for c in nodes[k] if mine & set(c)]):
            return "more threads than cores"
    if want < len(nodes):
        if any(len(m) != 1 for m in members.values()) or max(len(s[0]) for s in shares) - min(len(s[0]) for s in shares) > 1:
            return "nodes are not dealt out evenly"
        return None if all(s[2] == sum(len(nodes[k]) for k in s[0]) for s in shares) else "threads are not cores"
    for number, mine in members.items():
        cores, n = nodes[number], len(mine)
        if any(len(s[0]) != 1 for s in mine) or n < 1:
            return "a rank on two nodes, or a node without one"
        # Nobody gains by taking a rank from another node.
        for other in nodes:
            if len(members[other]) > 1 and len(cores) / (n + 1) > len(nodes[other]) / len(members[other]):
                return "node %d has too few ranks" % number
        if n > len(cores):
            if any(s[1] != {c for core in cores for c in core} or s[2] != 1 for s in mine):
                return "more ranks than cores do not share them"
            continue
        owned = [[core for core in cores if s[1] & set(core)] for s in mine]
        if any(not set(core) <= s[1] for s, o in zip(mine, owned) for core in o) or sum(map(len, owned)) != len(cores):
            return "a core has two ranks"
        if max(map(len, owned)) - min(map(len, owned)) > 1 or {s[2] for s in mine} != {len(cores) // n}:
            return "cores are not divided evenly"
    return None


def check(name, environment, nodes):
    global failed, done
    for ranks in (None, 2, 3, len(nodes), 2 * len(nodes), 16, 100):
        shares, count = plan(environment, ranks)
        problem = broken_rule(nodes, ranks, shares, count)
        done += 1
        if problem:
            failed += 1
            print("%s, %s: %s: %s" % (name, "-n %d" % ranks if ranks else "default", problem, shares[:3]))


# The numbers of CPUs as hwloc's descriptions have them: core by core.
for nodes, cores, threads in [(1, 64, 1), (1, 64, 2), (2, 32, 1), (2, 64, 2), (4, 16, 1), (4, 32, 2), (8, 8, 1), (8, 16, 2)]:
    host = {k: [[(k * cores + c) * threads + t for t in range(threads)] for c in range(cores)] for k in range(nodes)}
    text = "node:%d core:%d pu:%d" % (nodes, cores, threads)
    check(text, {"HWLOC_SYNTHETIC": text}, host)


def linux(sizes, threads):
    """Nodes of these numbers of cores; second threads of cores come after all first ones, as Linux counts."""
    first = [sum(sizes[:k]) for k in range(len(sizes))]
    return [[[first[k] + c + t * sum(sizes) for t in range(threads)] for c in range(n)] for k, n in enumerate(sizes)]


# (name, cores of each node, threads of a core, CPUs that are not allowed, nodes with memory only)
for name, sizes, threads, forbidden, empty in [
        ("two sockets with SMT", [32, 32], 2, [], 0),
        ("a node without cores", [16, 16], 1, [], 1),
        ("high-bandwidth nodes", [8, 8, 8, 8], 2, [], 4),
        ("nodes of different size", [24, 16, 16], 1, [], 0),
        ("a small node takes no part", [32, 4], 1, [], 0),
        ("a cpuset of half of each node", [32, 32], 2, [c for c in range(128) if c % 32 >= 16], 0),
        ("a cpuset without second threads", [16, 16], 2, list(range(32, 64)), 0),
        ("a cpuset of one node", [16, 16], 1, list(range(16)), 0),
        ("a cpuset of 17 CPUs", [16, 16], 1, list(range(17, 32)), 0),
        ("more than 64 CPUs in a word", [48, 48, 48, 48], 2, [5, 100, 383], 0)]:
    full = linux(sizes, threads)
    path = os.path.join(folder, "host.xml")
    everything = {c for n in full for core in n for c in core}
    with open(path, "w") as f:
        f.write(xml(full, everything - set(forbidden), empty))
    left = {k: [core for core in ([c for c in core if c not in forbidden] for core in n) if core] for k, n in enumerate(full)}
    check(name, {"HWLOC_XMLFILE": path}, {k: n for k, n in left.items() if n})

print("%d plans, %d wrong" % (done, failed))
sys.exit(failed != 0)
