# shellcheck shell=bash
# Completion of flue(1) for bash. Commands and options are asked for, so they are those of the command itself.

# The options of a command, as its help lists them, "--name" or "--name=" for those that want a value.
_flue_options() {
	"$1" "$2" --help 2>/dev/null |
		sed -nE 's/^ {0,6}(-., )? *(--[a-z-]+)(\[?=?).*/\2\3/p' | sed 's/\[=*$//'
}

_flue_commands() {
	"$1" help 2>/dev/null | sed -nE 's/^  ([a-z]+) .*/\1/p'
}

# What an option can be.
_flue_values() { # option
	case $1 in
	--profile) echo latency balanced cpu ;;
	--sort | -s) echo rate bytes program pid port ;;
	--crc) echo on off ;;
	--link) echo tcp local ;;
	--op | -o) echo write read send all ;;
	--test | -t) echo latency bandwidth both ;;
	esac
}

_flue() {
	local flue=$1 word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} before=${COMP_WORDS[COMP_CWORD - 1]}
	local at

	COMPREPLY=()
	if [ "$COMP_CWORD" = 1 ]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_flue_commands "$flue")" -- "$word")
		return
	fi
	# "--name=value" is three words.
	if [ "$before" = = ]; then
		before=${COMP_WORDS[COMP_CWORD - 2]}
	elif [ "$word" = = ]; then
		word=
	fi
	case $command in
	help)
		mapfile -t COMPREPLY < <(compgen -W "$(_flue_commands "$flue")" -- "$word")
		return
		;;
	run)
		# Behind the options comes a program with its own.
		for ((at = 2; at < COMP_CWORD; at++)); do
			case ${COMP_WORDS[at]} in
			--profile | --rules | --stats)
				[ "${COMP_WORDS[at + 1]}" != = ] || at=$((at + 1))
				at=$((at + 1))
				;;
			-*) ;;
			*)
				if declare -F _command_offset >/dev/null; then
					_command_offset "$at"
				else
					compopt -o default
				fi
				return
				;;
			esac
		done
		;;
	esac
	case $before in
	--rules | --stats | --output | -o)
		if [ "$command" != perf ]; then
			compopt -o default 2>/dev/null
			mapfile -t COMPREPLY < <(compgen -f -- "$word")
			return
		fi
		;;
	esac
	if [ -n "$(_flue_values "$before")" ] && { [ "$before" != -s ] || [ "$command" = sockets ]; }; then
		mapfile -t COMPREPLY < <(compgen -W "$(_flue_values "$before")" -- "$word")
		return
	fi
	case $word in
	-*)
		mapfile -t COMPREPLY < <(compgen -W "$(_flue_options "$flue" "$command")" -- "$word")
		[ "${#COMPREPLY[@]}" != 1 ] || [ "${COMPREPLY[0]%=}" = "${COMPREPLY[0]}" ] ||
			compopt -o nospace 2>/dev/null
		;;
	*)
		case $command in
		run) mapfile -t COMPREPLY < <(compgen -c -- "$word") ;;
		ping | perf) mapfile -t COMPREPLY < <(compgen -A hostname -- "$word") ;;
		esac
		;;
	esac
}

complete -F _flue flue
