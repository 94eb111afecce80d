# Completions for bash: the program itself finds what completes a line.
_clap_complete_bloom_runtime() {
    local IFS=$'\013' typed="${COMP_LINE:0:COMP_POINT}" words=() last=-1 i part rest space before found safe quoted
    # bash also splits words at characters such as = and : (COMP_WORDBREAKS); the program needs whole words.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest="${typed#"${typed%%[![:space:]]*}"}"
        if ((i == COMP_CWORD)); then part="$rest"; else part="${COMP_WORDS[i]}"; fi
        if ((last < 0)) || [[ "$rest" != "$typed" ]]; then
            words[++last]="$part"
        else
            words[last]+="$part"
        fi
        typed="${rest#"$part"}"
    done
    # What bash keeps of the last word: it replaces only the rest, which is $2.
    before="${words[last]%"$2"}"
    before="${before//[\"\']/}"
    words[last]="$before$2"
    if compopt +o nospace 2> /dev/null; then space=false; else space=true; fi
    found="$( \
        _CLAP_IFS="$IFS" \
        _CLAP_COMPLETE_INDEX="$last" \
        _CLAP_COMPLETE_COMP_TYPE="$COMP_TYPE" \
        _CLAP_COMPLETE_SPACE="$space" \
        BLOOM_COMPLETE="bash" \
        "bloom-runtime" -- "${words[@]}" \
    )" || return
    # Not by an assignment, which would expand a name such as * to files.
    read -r -d '' -a words < <(printf '%s\0' "$found")
    COMPREPLY=()
    # Names come from a server, where others may have chosen them: without quotes, the shell would carry out a name such as $(command).
    safe='^[[:alnum:]_./:=,@%+-]* ?$' quoted="${COMP_WORDS[COMP_CWORD]}"
    for part in "${words[@]}"; do
        part="${part#"$before"}"
        if [[ "$part" =~ $safe ]]; then
            COMPREPLY+=("$part")
        elif [[ "$quoted" != *[\"\']* ]]; then
            COMPREPLY+=("$(printf %q "$part")")
        fi
    done
    if [[ $space == false ]] && [[ "${COMPREPLY-}" =~ [=/:]$ ]]; then
        compopt -o nospace
    fi
}
if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -o nospace -o bashdefault -o nosort -F _clap_complete_bloom_runtime bloom-runtime
else
    complete -o nospace -o bashdefault -F _clap_complete_bloom_runtime bloom-runtime
fi
