#!/bin/bash
# The guards of a run, on real runs: a flipped bit in a replica, steps that are not finite, spikes, effective
# training time. States are compared by their hashes with those of undisturbed runs.
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-learned
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" max_duration=12ba scheduler.t_max=12ba
    save_interval=4ba log_config=false log_to_console=false)

# train FOLDER CODE [override ...]: a run in $tmp/FOLDER on $ranks ranks (default 1) that must exit with CODE
train() {
    local folder=$1 want=$2 code
    shift 2
    local run=(train "${settings[@]}" "save_folder=$tmp/$folder" "$@")
    if [ "${ranks:-1}" = 1 ]; then "$cltrain" "${run[@]}"; else on_ranks "$ranks" "${run[@]}"; fi >"$log" 2>&1
    code=$?
    [ $code = "$want" ] || report "$folder: exit" 1 "$code, not $want"
}
state() { "$cltrain" ckpt hash "$tmp/$1" | tr '\n' ' '; }
# same NAME A B, other NAME A B: the newest checkpoints of two folders
same() { [ "$(state "$2")" = "$(state "$3")" ] && [ -n "$(state "$2")" ]; report "$1" $? "$2 and $3"; }
other() { [ "$(state "$2")" != "$(state "$3")" ]; report "$1" $? "$2 and $3"; }
says() { grep -q "$1" "$log"; report "it prints '$1'" $?; }
event() { grep -q "\"event\":\"$2\",.*$3" "$tmp/$1/metrics.jsonl"; report "$1: event $2 $3" $?; }
events() { grep -c "\"event\":\"$2\"" "$tmp/$1/metrics.jsonl"; }

train straight 0
says 'effective training time: [0-9.]* % ('
event straight start '"first":true'
event straight end '"why":"done","ettr":0\.'
# One step of a process is mostly compilation: nothing is known.
train single 0 max_duration=1ba
event single end '"why":"done","useful_seconds":0\.000'
! grep -q 'effective training time' "$log"
report "a single step has no effective training time" $?

# --- replicas ---

# The flip after batch 7 is found before batch 8 is saved; the resumed run ends like the undisturbed one.
ranks=3 CLTRAIN_INJECT=flip=1:7:1000003 train flip3 75
says '^error: batch 8: the values (weight) of rank 1 (host .*) differ from those of the other 2 ranks'
event flip3 replicas_differ '"ranks":\[1\],"known":true'
[ ! -e "$tmp/flip3/ep1-ba8" ] && [ -d "$tmp/flip3/ep0-ba4" ]
report "the bad state is not saved" $?
ranks=3 train flip3 0
same "after a flipped bit" straight flip3
event flip3 start '"first":false'
ranks=2 CLTRAIN_INJECT=flip=0:5:31 train flip2 75 cltrain.guards.replica_hash_interval=2
says '^error: batch 6: the values (.*) of ranks 0 (host .*), 1 (host .*) differ; .* with 2 ranks the wrong one cannot be determined'
ranks=2 CLTRAIN_INJECT=flip=1:7:99 train flipoff 0 cltrain.guards.replica_hash_interval=0
CLTRAIN_INJECT=flop=1 train badhook 2

# --- steps that are not finite ---

export CLTRAIN_INJECT=nan=6:8
train stop 1
says '^error: batch 6: loss nan.*the weights were not changed'
event stop nonfinite '"action":"stop"'
train skip 0 cltrain.guards.nonfinite=skip
[ "$(events skip nonfinite)" = 3 ]
report "three steps are skipped" $? "$(events skip nonfinite)"
other "skipped steps change the state" straight skip
train skipcut 0 cltrain.guards.nonfinite=skip max_duration=7ba
train skipcut 0 cltrain.guards.nonfinite=skip
same "skipped steps with a stop between them" skip skipcut
ranks=2 train skip2 0 cltrain.guards.nonfinite=skip
same "skipped steps on two ranks" skip skip2
train limit 1 cltrain.guards.nonfinite=skip cltrain.guards.nonfinite_in_a_row=2
says '^error: batch 7:'
train back 0 cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2
event back rollback '"to":4,"rollbacks":1'
other "a roll-back changes the state" skip back
CLTRAIN_INJECT=nan=6:40 train bounded 1 cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2
says '^error: batch 11: after 2 roll-backs'
train nowhere 1 cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2 save_interval=40ba
says '^error: batch 7: no checkpoint to roll back to'
unset CLTRAIN_INJECT

# A roll-back in amp_fp16 restores the loss scale: gradients overflow at first, and the checkpoint of batch 2
# has 16,384.
scale=(precision=amp_fp16 model.logit_scale=3000 save_interval=2ba cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2)
CLTRAIN_INJECT=nan=4:5 train scaleback 0 "${scale[@]}"
for row in '4,.*"loss_scale":8192' '6,.*"loss_scale":16384'; do
    grep -q "^{\"batch\":$row," "$tmp/scaleback/metrics.jsonl"
    report "the roll-back restores the loss scale" $? "$row"
done

# A roll-back continues from the checkpoint's weights and moments with the next data: after a roll-back to
# batch 4, where all steps 5 to 8 were skipped anyway, the state must be that of a run that only skips.
CLTRAIN_INJECT=nan=5:8 train all4 0 cltrain.guards.nonfinite=skip
CLTRAIN_INJECT=nan=5:8 train back4 0 cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=4
same "a roll-back over skipped steps changes nothing" all4 back4

# A roll-back loads the whole checkpoint, even if load_ignore_keys excluded tensors of load_path: as in a run
# that was stopped there.
CLTRAIN_INJECT=nan=6:7 train parts 0 cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2 'load_ignore_keys=[transformer.wte.weight]'
train partscut 0 max_duration=4ba 'load_ignore_keys=[transformer.wte.weight]'
CLTRAIN_INJECT=nan=6:7 train partscut 0 cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2
same "a roll-back after load_ignore_keys" parts partscut

# Weights that a load leaves out have their initial values.
train fresh 0 load_path=null max_duration=4ba
train ignored 0 max_duration=4ba load_weights_only=true 'load_ignore_keys=["*"]'
same "load_ignore_keys leaves initial values" fresh ignored

# --- not finite, with sharded state ---

# A model of which every rank owns a part: all ranks judge the step alike, and no owner changes its weights.
sharded=(load_path=null model.d_model=128 model.n_layers=4 cltrain.guards.replica_hash_interval=1)
export CLTRAIN_INJECT=nan=2:2
train skipwhole 0 "${sharded[@]}" cltrain.guards.nonfinite=skip
for stage in 1 2 3; do
    ranks=3 train "stopat$stage" 1 "${sharded[@]}" "cltrain.zero_stage=$stage"
    says '^error: batch 2: loss nan.*the weights were not changed'
    ranks=3 train "skipat$stage" 0 "${sharded[@]}" "cltrain.zero_stage=$stage" cltrain.guards.nonfinite=skip
    same "a skipped step at stage $stage" skipwhole "skipat$stage"
done
export CLTRAIN_INJECT=nan=6:8
back=("${sharded[@]}" cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2)
train backwhole 0 "${back[@]}"
for stage in 2 3; do
    ranks=2 train "backat$stage" 0 "${back[@]}" "cltrain.zero_stage=$stage"
    event "backat$stage" rollback '"to":4,"rollbacks":1'
    same "a roll-back at stage $stage" backwhole "backat$stage"
done
unset CLTRAIN_INJECT

# --- spikes ---

spiky=(cltrain.guards.spike_window=4 cltrain.guards.spike_threshold=1.2)
train warn 0 "${spiky[@]}"
event warn spike '"action":"warn"'
says '^warning: batch [0-9]*: the \(loss\|gradient norm\) is [0-9.]* standard deviations above the mean of the last 4 steps (loss'
same "a warning changes nothing" straight warn
train spike 0 "${spiky[@]}" cltrain.guards.loss_spike=skip
n=$(events spike spike)
[ "$n" -ge 1 ]
report "spikes are skipped" $? "$n"
other "skipped spikes change the state" straight spike
for stop in ${STOPS:-5}; do
    train "spike$stop" 0 "${spiky[@]}" cltrain.guards.loss_spike=skip max_duration=${stop}ba
    train "spike$stop" 0 "${spiky[@]}" cltrain.guards.loss_spike=skip
    same "skipped spikes, stopped at $stop" spike "spike$stop"
done
ranks=3 train spikes3 0 "${spiky[@]}" cltrain.guards.loss_spike=skip
same "skipped spikes on three ranks" spike spikes3
train spikestop 1 "${spiky[@]}" cltrain.guards.loss_spike=stop
says '^error: batch [0-9]*: loss spike'
train off 0 "${spiky[@]}" cltrain.guards.loss_spike=off
[ "$(events off spike)" = 0 ]
report "loss_spike=off reports no spikes" $?
train spikewhole 0 "${sharded[@]}" "${spiky[@]}" cltrain.guards.spike_threshold=0.5 cltrain.guards.loss_spike=skip
ranks=3 train spikestage3 0 "${sharded[@]}" "${spiky[@]}" cltrain.guards.spike_threshold=0.5 cltrain.guards.loss_spike=skip \
    cltrain.zero_stage=3
n=$(events spikestage3 spike)
[ "$n" -ge 1 ]
report "spikes are skipped at stage 3" $? "$n"
same "skipped spikes at stage 3" spikewhole spikestage3
train badthreshold 78 cltrain.guards.spike_window=10 cltrain.guards.spike_threshold=3
finish
