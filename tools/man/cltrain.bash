# Bash completion for cltrain: commands and options, both from the program's --help, and file names.
_cltrain() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]:-} list
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        list=$("${COMP_WORDS[0]}" --help 2>/dev/null | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$list --help --version --help-env" -- "$word")
    elif [[ $word == -* ]]; then
        list=$("${COMP_WORDS[0]}" "$command" --help 2>/dev/null | grep -o -- '--[a-z][a-z-]*' | sort -u)
        mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
    elif [ "$COMP_CWORD" = 2 ] && { [ "$command" = data ] || [ "$command" = ckpt ]; }; then
        list=$("${COMP_WORDS[0]}" "$command" --help 2>/dev/null | sed -n '/^\(Actions\|Commands\)/,/^$/s/^  \([a-z]*\)  .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _cltrain cltrain
