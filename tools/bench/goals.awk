# goals.awk: compares what tools/bench_multi.sh measured with its goals and prints a Markdown table.
#   awk -F '\t' -v link=GB_PER_SECOND -f goals.awk records.tsv collectives.tsv hashes.tsv
# The columns: tools/bench/lib.sh for records.tsv, tools/bench_multi.sh for the others. Missing files count as empty.
# Of several rounds the mean counts, of several stages the fastest.

FILENAME ~ /records\.tsv$/ && $9 != "-" {
    k = $2 FS $3 FS $4 FS $5 FS $6 FS $7
    total[k] += $9; times[k]++
    if ($3 == "cltrain" && $11 + 0 > mfu[$2, $4]) mfu[$2, $4] = $11
    if ($4 > 1 && $2 != "cpu") several[$4] = 1
    if ($5 == 3 && $12 != "-" && $13 != "-") { off = 100 * ($12 / $13 - 1); if (off < 0) off = -off
        stages3++; if (off > worst) worst = off }
}
FILENAME ~ /collectives\.tsv$/ {
    if ($6 + 0) wrong = 1
    if ($1 == "default" && $3 >= 2^26) { large++; if (!slowest || $5 < slowest) slowest = $5 }
    if ($2 == "allreduce" && $3 == 8192 && $10 == 2) { small[$1, $9] = $4; mpi[$1, $9] = $7 }
}
FILENAME ~ /hashes\.tsv$/ && $5 != "skipped" {
    hashes[$7]++
    if ($5 == "-" || (want[$7] != "" && $5 != want[$7])) differ[$7]++
    if (want[$7] == "") want[$7] = $5
}

# best(CASE, SIDE, RANKS, MICROBATCH): tokens/s of the fastest record; sides are compared up to their first word, any
# microbatch if it is "". Zero: there is none.
function best(name, side, ranks, microbatch,    k, f, rate, most) {
    for (k in total) {
        split(k, f, FS)
        if (f[1] != name || f[2] !~ "^" side || f[3] != ranks || (microbatch != "" && f[5] != microbatch)) continue
        rate = total[k] / times[k]
        if (rate > most) most = rate
    }
    return most + 0
}
# ratio(CASE, N): ours on N ranks against PyTorch with the same microbatch; the best pair
function ratio(name, n,    mb, ours, theirs, most) {
    for (mb = 1; mb <= 64; mb *= 2) {
        ours = best(name, "cltrain", n, mb); theirs = best(name, "PyTorch", n, mb)
        if (ours && theirs && ours / theirs > most) most = ours / theirs
    }
    return most ? most : ""
}
function scaling(name, n,    one, many) {
    one = best(name, "cltrain", 1, ""); many = best(name, "cltrain", n, "")
    return one && many ? many / one / n : ""
}
function reached(value, yes) { return value == "" ? "-" : yes ? "yes" : "no" }
function shown(value, form) { return value == "" ? "not measured" : sprintf(form, value) }
function line(name, sign, limit, value, yes, form) {
    print "| " name " | " sign " " sprintf(form, limit) " | " shown(value, form) " | " reached(value, yes) " |"
}
function goal(name, value, least, form) { line(name, ">=", least, value, value + 0 >= least, form) }
function bound(name, value, most, form) { line(name, "<=", most, value, value + 0 <= most, form) }
function cpu_ratio(    one, two) {
    one = best("cpu", "cltrain", 1, ""); two = best("cpu", "cltrain", 2, "")
    return one && two ? two / one : ""
}
# CPU ranks were measured by part cpu, or by part collectives if the machine has no GPU.
function small_cpu(    k) {
    k = "cpu" SUBSEP "CPU"
    if (!(k in small)) k = "default" SUBSEP "CPU"
    return k in small ? small[k] - mpi[k] : ""
}
function small_gpu(    k) {
    k = "default" SUBSEP "GPU"
    return k in small ? small[k] : ""
}
END {
    print "| goal | aim | measured | reached |"
    print "|---|---|---|---|"
    if (!length(several)) several[2] = 1
    for (n = 2; n <= 1024; n++) if (n in several) {
        gpus = n " GPUs, "
        goal("MPT-1B 8 x 1, " gpus "against DDP", ratio("1b-8x1", n), 1, "%.3f")
        goal("MPT-1B 8 x 4, " gpus "against DDP", ratio("1b-8x4", n), n == 2 ? 1.05 : 1, "%.3f")
        goal("MPT-1B 8 x 4, " gpus "scaling", scaling("1b-8x4", n), n == 2 ? 0.96 : 0.95, "%.3f")
        goal("MPT-125M 16 x 4, " gpus "against DDP", ratio("125m-16x4", n), n == 2 ? 1.10 : 1, "%.3f")
        goal("MPT-125M 16 x 4, " gpus "scaling", scaling("125m-16x4", n), 0.95, "%.3f")
        goal("MPT-7B, " gpus "against FSDP2", ratio("7b", n), 1, "%.3f")
        goal("MPT-13B, " gpus "stage 3, MFU %", mfu["13b", n], 40, "%.1f")
        goal("MPT-13B, " gpus "against FSDP2", ratio("13b", n), 0.9, "%.3f")
        goal("exact fp32, MPT-125M, " gpus "scaling", scaling("exact", n), 0.95, "%.3f")
    }
    goal("CPU: 2 ranks x 1 core against 1 rank x 2 cores", cpu_ratio(), 0.97, "%.3f")
    goal("least bus bandwidth from 64 MiB on, GB/s, links " link, large ? slowest : "", 0.85 * link, "%.1f")
    bound("allreduce of 8 KiB on 2 GPUs, us", small_gpu(), 100, "%.1f")
    bound("allreduce of 8 KiB on 2 CPU ranks, us more than MPI_Allreduce", small_cpu(), 20, "%.1f")
    bound("memory of stage 3 against the plan, %", stages3 ? worst : "", 5, "%.1f")
    hashes["fp32"] += 0
    for (p in hashes) {
        equal = hashes[p] > 1 ? (hashes[p] - differ[p]) " of " hashes[p] : ""
        print "| " p ": hashes equal | all | " shown(equal, "%s") " | " reached(equal, !differ[p]) " |"
    }
    if (wrong) print "\nSome results of collectives are wrong."
}
