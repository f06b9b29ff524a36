# Shared by the lab scripts: where things are, how to say why something cannot work.
# shellcheck shell=bash

LAB_ME=lab/$(basename "$0")

# The addresses are constants: every lab has a network namespace of its own.
# shellcheck disable=SC2034 # used by the scripts that source this file
{
	LAB_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
	LAB_CACHE=${FLUE_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flue-lab}
	HOST_IP=10.77.0.1
	GUEST_IP=10.77.0.2
	AGENT_PORT=7100
	READY_LINE=FLUE-LAB-READY
}

say()
{
	echo "$LAB_ME: $*" >&2
}

die()
{
	say "error: $*"
	exit 1
}

# The test world's "could not try": the caller reports a skip with this reason.
skip()
{
	say "skipped: $*"
	exit 77
}

need_programs()
{
	local missing=() p
	for p in "$@"; do
		command -v "$p" >/dev/null || missing+=("$p")
	done
	[ ${#missing[@]} -eq 0 ] || skip "missing programs: ${missing[*]}"
}

# A process that has ended is not alive, even if nobody has asked for its status yet: where process 1 is
# a simple one, that takes seconds.
alive()
{
	local state
	[ -n "${1:-}" ] && kill -0 "$1" 2>/dev/null || return
	state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return
	[ "${state%% *}" != Z ]
}

# wait_gone PID SECONDS: success once the process is no more.
wait_gone()
{
	local end=$((SECONDS + $2))
	while alive "$1"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}

# in_net STATE CMD...: runs the command in the lab's network namespace, which qemu keeps alive.
# Without root the namespace belongs to a user namespace of ours, to be entered first.
in_net()
{
	local state=$1 pid
	shift
	pid=$(cat "$state/qemu.pid" 2>/dev/null) || die "$state: no lab is up there"
	alive "$pid" || die "$state: the guest is gone, see $state/console.log"
	case $(cat "$state/kind") in
	root) exec nsenter -t "$pid" -n -- "$@" ;;
	user) exec nsenter -t "$pid" -U -n --preserve-credentials -- "$@" ;;
	esac
}
