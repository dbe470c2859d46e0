#!/bin/bash
# cltrain generate --chat: the model sees the conversation as the chat template writes it, and an answer ends
# where the template ends a turn.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
model=$golden/icl/hf tokenizer=$golden/finetune/tokenizers/chatml
say() { "$cltrain" generate "$model" -q --tokenizer "$tokenizer" -t 0 -n 20 "$@" 2>"$log"; }
start='<|im_start|>' end='<|im_end|>' nl=$'\n'

# plain PROMPT: how the model continues it, without the prompt
plain() {
    local text
    text=$(say -p "$1" --stop "$end" --stop-at-eos) || fail "generate failed: $(cat "$log")"
    printf '%s' "${text#"$1"}"
}

first="${start}user${nl}What is it?${end}${nl}${start}assistant${nl}"
want=$(plain "$first")
[ -n "$want" ] || fail "the model has no answer to compare"
got=$(say --chat -p "What is it?") || fail "generate --chat failed: $(cat "$log")"
[ "$got" = "$want" ] || fail "one question: '$got', not '$want'"

# Two lines of stdin are two turns; the first answer is context of the second. The template trims contents.
trimmed=$(sed -e '1s/^[[:space:]]*//' -e '$s/[[:space:]]*$//' <<<"$want")
second="$first$trimmed$end$nl${start}user${nl}And then?${end}${nl}${start}assistant${nl}"
got=$(printf 'What is it?\n\nAnd then?\n' | say --chat) || fail "generate --chat with stdin failed: $(cat "$log")"
[ "$got" = "$want$nl$(plain "$second")" ] || fail "two turns: '$got'"

got=$(say --chat --system "Be brief." -p "What is it?")
[ "$got" = "$(plain "${start}system${nl}Be brief.${end}${nl}$first")" ] || fail "a system message: '$got'"
grep -q "no chat template" "$log" && fail "a tokenizer with a template: $(cat "$log")"
"$cltrain" generate "$model" --tokenizer bytes -t 0 -n 1 --chat -p "x" >/dev/null 2>"$log"
grep -q "no chat template: chatml is used" "$log" || fail "a tokenizer without a template: $(cat "$log")"
say --chat --chat-template jinja -p "x" >/dev/null
[ $? = 78 ] && grep -q "chatml" "$log" || fail "an unknown chat template: $(cat "$log")"
say --chat-template chatml -p "x" >/dev/null
[ $? = 2 ] || fail "--chat-template without --chat"
finish
