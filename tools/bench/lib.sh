# shellcheck shell=bash
# lib.sh: measures training on several devices, for tools/throughput_table.sh and tools/bench_multi.sh. They are
# started in the project's root, set $out and $tiny (yes or no), and call bench_setup. Variables of the environment:
#   CLTRAIN  the program (default build/cltrain)
#   DEVICE   device patterns as for --device (default: cltrain chooses)
#   PYTHON   a python3 with PyTorch
#   PEAK     TFLOP/s of a device in 16 bits, for MFU (default: the data sheet's if the device is known)
# Every measurement fills two arrays: plan, what cltrain plan says, and run, what the run did. run[reason] is empty if it
# succeeded. bench_record writes both as one line of $out/records.tsv; bench_rows prints these lines as Markdown. The
# columns of records.tsv, with "-" for what is not known:
#   part case side ranks stage microbatch accumulation recompute rate tflops mfu memory planned first last note

declare -A plan run
SKIP=3      # steps that are not measured: kernels are compiled, memory is allocated, clocks settle
deadline=0  # of the part, in $SECONDS; 0: none

bench_setup() {
    CLTRAIN=$(readlink -f "${CLTRAIN:-${BUILD:-build}/cltrain}") PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-}
    root=$PWD
    : "${tiny:=no}"
    mkdir -p "$out" || exit 1
    out=$(readlink -f "$out")
    work=$(mktemp -d)
    trap '[ $BASHPID != $$ ] || rm -rf "$work"' EXIT
    [ -x "$CLTRAIN" ] || { echo "no program at $CLTRAIN: run make all, or set CLTRAIN" >&2; exit 2; }
    devices=$("$CLTRAIN" devices --json) || { echo "cltrain devices failed; nothing can be measured" >&2; exit 69; }
    # One line per device, the default one (the first if none is marked) in front.
    device_type=$(bench_default type) device_name=$(bench_default name)
    gpus=$(grep -o '"type":"GPU"' <<<"$devices" | wc -l)
    PEAK=${PEAK:-$(bench_nominal "$device_name")}
    seq=2048 && [ "$tiny" = no ] || seq=32
}

# bench_default FIELD: a field of cltrain's default device
bench_default() {
    local line
    line=$(sed 's/},{/}\n{/g' <<<"$devices" | grep '"default":true') || line=$(sed 's/},{/}\n{/g' <<<"$devices")
    sed -n "1s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" <<<"$line"
}

# bench_nominal NAME: dense 16-bit TFLOP/s of the data sheet; "-" if the device is not listed
bench_nominal() {
    case $1 in
    *H100* | *H200*) echo 989.5 ;;
    *A100*) echo 312 ;;
    *) echo - ;;
    esac
}

say() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }

# bench_field KEY FILE: the number or word of a key in a file of JSON
bench_field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,}\"]*\).*/\1/p" "$2" | head -n 1; }

# bench_error FILE: one line that says why a program failed
bench_error() {
    local line
    line=$(grep -m 1 '^error:' "$1") || line=$(grep -E 'Error: |has no PyTorch|^[0-9]+ ranks need' "$1" | tail -n 1)
    [ -n "$line" ] || line=$(tail -n 1 "$1")
    printf '%s' "${line:-no output}" | sed 's/^error: //' | tr '\t|' '  ' | cut -c 1-240
}

# bench_data SEQ: makes $work/data-SEQ and $work/tokens.bin from text of this machine, once. Two bytes of ASCII text are
# one token: several thousand different tokens, distributed as words are, from which a model learns. The other side reads
# the same file of uint16.
bench_data() {
    local seq=$1 want=$((1 << 24))
    [ "$tiny" = no ] || want=1
    if [ ! -e "$work/tokens.bin" ]; then
        tools/collect_text.sh "$work/text" >"$out/data.log" 2>&1 || return 1
        find "$work/text" -type f | sort | xargs cat | LC_ALL=C tr -d '\200-\377' >"$work/once.bin"
        [ -s "$work/once.bin" ] || { echo "no text found" >>"$out/data.log"; return 1; }
        truncate -s "$(($(stat -c %s "$work/once.bin") / 2 * 2))" "$work/once.bin"
        while [ "$(stat -c %s "$work/tokens.new" 2>/dev/null || echo 0)" -lt $want ]; do cat "$work/once.bin" >>"$work/tokens.new"; done
        mv "$work/tokens.new" "$work/tokens.bin"
    fi
    [ -d "$work/data-$seq" ] || "$CLTRAIN" -q data convert "$work/tokens.bin" --tokens uint16 --concat-tokens "$seq" \
        --out "$work/data-$seq" >>"$out/data.log" 2>&1
}

# bench_settings MODEL RANKS STAGE MICROBATCH ACCUMULATION RECOMPUTE: sets the array `settings` to the configuration.
# RECOMPUTE: default, none, norms or blocks. Weights and biases are those of torch_multi.py.
bench_settings() {
    settings=("$root/tools/presets/$1.yaml" "variables.data_local=$work/data-$seq" "variables.max_seq_len=$seq"
        eval_interval=0 eval_loader.dataset.split=train model.no_bias=true "model.init_config={name: baseline_, init_std: 0.02}"
        fsdp_config.sharding_strategy=null fsdp_config.activation_checkpointing=false scheduler.t_warmup=4ba log_config=false log_to_console=false progress_bar=false
        "global_train_batch_size=$(($2 * $4 * $5))" "device_train_microbatch_size=$4" "cltrain.zero_stage=$3")
    [ "$6" = default ] || settings+=("cltrain.recompute=$6")
    [ "$tiny" = no ] || settings+=(model.d_model=64 model.n_heads=2 model.n_layers=2 model.vocab_size=32640)
}

# bench_plan RANKS SETTING...: fills plan. plan[reason] says why a run does not fit, and is empty if it does. plan[stage] is
# the stage that the run will have: not the one that was asked for if this cltrain does not support it.
bench_plan() {
    local ranks=$1 code text
    shift
    plan=([reason]='' [total]=- [flops]=- [recompute]=- [stage]=0)
    "$CLTRAIN" plan "$@" --ranks "$ranks" ${DEVICE:+--device "$DEVICE"} --json >"$work/plan.json" 2>"$work/plan.log"
    code=$?
    [ $code = 0 ] || plan[reason]=$(bench_error "$work/plan.log")
    [ -s "$work/plan.json" ] || return
    text=$(grep -o '"stage":[0-9]*' "$work/plan.json" | head -n 1) # the first one is that of the run
    plan[stage]=${text#*:}
    plan[stage]=${plan[stage]:-0}
    plan[total]=$(bench_field total "$work/plan.json") plan[flops]=$(bench_field flops_per_token "$work/plan.json")
    text=$("$CLTRAIN" plan "$@" --ranks "$ranks" ${DEVICE:+--device "$DEVICE"} 2>/dev/null)
    case $text in
    *", norms recomputed"*) plan[recompute]=norms ;;
    *", activations recomputed"*) plan[recompute]=blocks ;;
    *) plan[recompute]=none ;;
    esac
}

# bench_limit SECONDS: prints the time that a program may take, at most what is left of the part; false if less than 15 s
# are left
bench_limit() {
    local left=$(($1))
    [ $deadline = 0 ] || [ $((deadline - SECONDS)) -ge $left ] || left=$((deadline - SECONDS))
    [ $left -ge "$1" ] || [ $left -ge 15 ] && echo $left
}

# bench_metrics FILE: sets run[rate], [first], [last], [memory] and [steps] from metrics.jsonl. The rate is that of all
# steps after the first $SKIP together.
bench_metrics() {
    local line
    line=$(awk -v skip=$SKIP '
        function value(key,  s) { s = $0; if (!sub(".*\"" key "\":", "", s)) return "-"; sub(/[,}].*/, "", s); return s }
        /"step_seconds":/ {
            n++; last = value("loss"); if (n == 1) first = last
            bytes = value("device_memory_bytes") + 0; if (bytes > memory) memory = bytes
            seconds = n > skip ? value("step_seconds") : 0
            time += seconds; tokens += value("tokens_per_sec") * seconds }
        END { print (time > 0 ? tokens / time : "-"), (n ? first : "-"), (n ? last : "-"), (memory ? memory : "-"), n + 0 }' "$1")
    read -r 'run[rate]' 'run[first]' 'run[last]' 'run[memory]' 'run[steps]' <<<"$line"
}

# bench_train NAME SECONDS STEPS RANKS SETTING...: trains, with log and metrics as $out/NAME.log and .jsonl. The words of
# the array `before` precede the command.
before=()
bench_train() {
    local name=$1 limit steps=$3 ranks=$4 code
    run=([rate]=- [first]=- [last]=- [memory]=- [steps]=0 [reason]='')
    limit=$(bench_limit "$2") || { run[reason]='not run: the time limit is used up'; return; }
    shift 4
    say "$name: cltrain, $ranks rank(s)"
    rm -rf "$work/runs/$name"
    (cd "$work" && "${before[@]}" timeout --foreground -k 20 "$limit" "$CLTRAIN" launch -n "$ranks" ${DEVICE:+--device "$DEVICE"} train "$@" \
        "run_name=$name" "max_duration=${steps}ba") >"$out/$name.log" 2>&1 </dev/null
    code=$?
    cp "$work/runs/$name/metrics.jsonl" "$out/$name.jsonl" 2>/dev/null && bench_metrics "$out/$name.jsonl"
    case $code in
    0) [ "${run[rate]}" != - ] || run[reason]="no step was measured: more than $SKIP steps are needed" ;;
    124 | 137) run[reason]="stopped after $limit s and ${run[steps]} steps" ;;
    *) run[reason]="exit code $code: $(bench_error "$out/$name.log")" ;;
    esac
}

# bench_torch NAME SECONDS STEPS RANKS OPTION...: the same with torch_multi.py
bench_torch() {
    local name=$1 limit steps=$3 ranks=$4 code json=$out/$1.json
    run=([rate]=- [first]=- [last]=- [memory]=- [steps]=0 [reason]='') plan=([total]=- [flops]=- [recompute]=none [reason]='' [stage]=0)
    limit=$(bench_limit "$2") || { run[reason]='not run: the time limit is used up'; return; }
    shift 4
    say "$name: PyTorch, $ranks rank(s)"
    rm -f "$json"
    timeout --foreground -k 20 "$limit" "$PYTHON" tools/anchors/torch_multi.py --ranks "$ranks" --steps "$steps" --seq "$seq" \
        --tokens "$work/tokens.bin" --json "$json" "$@" >"$out/$name.log" 2>&1 </dev/null
    code=$?
    case $code in
    0) ;;
    124 | 137) run[reason]="stopped after $limit s" && return ;;
    *) run[reason]="exit code $code: $(bench_error "$out/$name.log")" && return ;;
    esac
    run[rate]=$(bench_field tokens_per_second "$json") run[first]=$(bench_field loss_first "$json")
    run[last]=$(bench_field loss_last "$json") run[memory]=$(bench_field memory_bytes "$json")
    plan[flops]=$(bench_field flops_per_token "$json")
}

# bench_record PART CASE SIDE RANKS STAGE MICROBATCH ACCUMULATION PEAK: appends a line made of plan and run. PEAK: TFLOP/s,
# or "-".
bench_record() {
    local note=${run[reason]}
    [ -n "$note" ] || [ "$(bench_fell)" = yes ] || note='the loss did not fall'
    awk -v rate="${run[rate]}" -v flops="${plan[flops]}" -v peak="$8" -v n="$4" -v memory="${run[memory]}" -v planned="${plan[total]}" \
        -v head="$(printf '%s\t' "${@:1:7}")${plan[recompute]}" -v loss="${run[first]}"$'\t'"${run[last]}" -v note="${note:--}" 'BEGIN {
        t = rate > 0 && flops > 0 ? rate / n * flops * 1e-12 : "-"
        OFS = "\t"
        mfu = t != "-" && peak > 0 ? 100 * t / peak : "-"
        used = memory > 0 ? memory / 2^30 : "-"
        plan = planned > 0 ? planned / 2^30 : "-"
        print head, rate, t, mfu, used, plan, loss, note }' >>"$out/records.tsv"
    [ -z "${run[reason]}" ] || say "$2, $3, $4 rank(s), stage $5: ${run[reason]}"
}

# bench_fell: yes if the last loss is a number below the first one
bench_fell() { awk -v a="${run[first]}" -v b="${run[last]}" 'BEGIN { print a ~ /^[0-9]/ && b ~ /^[0-9]/ && b + 0 < a + 0 ? "yes" : "no" }'; }

# bench_forget PART: drops the part's records of an earlier call
bench_forget() {
    [ -e "$out/records.tsv" ] || return 0
    awk -F '\t' -v part="$1" '$1 != part' "$out/records.tsv" >"$work/records" && mv "$work/records" "$out/records.tsv"
}

# bench_rows CASE-TITLE PART...: prints the records of the parts as a Markdown table. Records of the same measurement
# become one row with their mean. Scaling compares with the first record of one rank of the same case and side.
bench_rows() {
    local title=$1
    shift
    [ -s "$out/records.tsv" ] || return 0
    awk -F '\t' -v title="$title" -v parts=" $* " 'BEGIN {
        print "| " title " | side | ranks | stage | microbatch x accumulation | recompute | tokens/s | TFLOP/s per device | MFU % | GiB used | GiB planned | scaling | loss, first to last | note |"
        print "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|" }
    function mean(sum, n, form) { return n ? sprintf(form, sum / n) : "-" }
    function add(k, i) { if ($i != "-") { sum[k, i] += $i; n[k, i]++ } }
    index(parts, " " $1 " ") {
        k = $2 FS $3 FS $4 FS $5 FS $6 FS $7 FS $8
        if (!(k in seen)) { seen[k] = 1; order[++count] = k; notes[k] = "-" }
        for (i = 9; i <= 13; i++) add(k, i)
        losses[k] = sprintf($14 == "-" ? "-" : "%.3f to %.3f", $14, $15)
        if ($16 != "-") notes[k] = $16
        if ($4 == 1 && $9 != "-" && !(($2, $3) in one)) one[$2, $3] = $9 }
    END { for (j = 1; j <= count; j++) {
        k = order[j]; split(k, f, FS); rate = n[k, 9] ? sum[k, 9] / n[k, 9] : 0
        scaling = rate && (f[1], f[2]) in one ? sprintf("%.3f", rate / f[3] / one[f[1], f[2]]) : "-"
        printf "| %s | %s | %s | %s | %s x %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", f[1], f[2], f[3], f[4], f[5], f[6], f[7],
            mean(sum[k, 9], n[k, 9], "%.0f"), mean(sum[k, 10], n[k, 10], "%.1f"), mean(sum[k, 11], n[k, 11], "%.1f"),
            mean(sum[k, 12], n[k, 12], "%.2f"), mean(sum[k, 13], n[k, 13], "%.2f"), scaling, losses[k], notes[k] } }' "$out/records.tsv"
}

# bench_machine: prints what was measured on, and with what
bench_machine() {
    echo "- machine: $gpus GPU(s), default device $device_name ($device_type), $(nproc) CPU cores, $(date +%F), $("$CLTRAIN" --version | head -n 1)"
    echo "- drivers: $(grep -o '"driver":"[^"]*"' <<<"$devices" | cut -d'"' -f4 | sort -u | paste -sd' ')"
    echo "- FLOP per token: 6 N + 12 layers d_model T; peak for MFU: $PEAK TFLOP/s of dense 16-bit products per device; T = $seq"
    echo "- rates are those of all steps after the first $SKIP; no biases, clipping at norm 1, weights N(0, 0.02), the same file of tokens"
}
