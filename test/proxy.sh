# shellcheck shell=bash disable=SC2034,SC2154
# proxy.sh: test/object/fault_proxy.py between cltrain and the store of store.sh. After store_start:
#     . test/proxy.sh && proxy_start --share 0.1 --seed 7
# starts it and makes it the endpoint; store_url is the store itself. proxy_stop makes the store the endpoint again and sets
# proxy_faults to a line of what was injected and proxy_count to the sum. It ends with the script.

proxy_program=$PWD/test/object/fault_proxy.py

proxy_start() {
    local i
    store_url=${store_url:-$AWS_ENDPOINT_URL}
    : >"$tmp/proxy.out"
    python3 "$proxy_program" --store "$store_url" "$@" >"$tmp/proxy.out" 2>"$tmp/proxy.err" &
    proxy_pid=$!
    trap '[ $BASHPID != $$ ] || { kill -KILL $proxy_pid; store_stop; rm -rf "$tmp"; } 2>/dev/null' EXIT
    for ((i = 0; i < 100; i++)); do
        AWS_ENDPOINT_URL=http://$(sed -n 's/^listening on //p' "$tmp/proxy.out")
        [ "$AWS_ENDPOINT_URL" = http:// ] || return 0
        sleep 0.1
    done
    cat "$tmp/proxy.err"
    fail "the proxy did not start"
    exit 1
}

proxy_stop() {
    kill -TERM "$proxy_pid"
    wait "$proxy_pid" 2>/dev/null
    AWS_ENDPOINT_URL=$store_url
    proxy_faults=$(sed -n 's/^fault //p' "$tmp/proxy.out" | paste -sd, | sed 's/,/, /g')
    proxy_count=$(awk '/^fault/ { n += $3 } END { print n + 0 }' "$tmp/proxy.out")
    [ ! -s "$tmp/proxy.err" ] || { fail "the proxy:"; tail -n 20 "$tmp/proxy.err"; }
}
