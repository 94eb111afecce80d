# Installs `bloom-runtime agent` as a service of this machine (systemd or OpenRC). Run it as root. Running it again updates the service.
# The first lines set the server that the agent works for, the agent's name (empty: made from the host name), and the port on which it listens
# for pushes (empty: it does not listen); the functions after them print the files of the service.
#
# The program is the bloom-runtime in PATH, or the one that BLOOM_RUNTIME_BIN names. The key for the server is read from the file that
# BLOOM_KEY_FILE names; without it, the key of an earlier run is used, or the script asks for it. A worker key (RUNTIME_WORKER_KEY at the
# server) is enough. The service manager reads the keys as root and gives them to the agent; its user, and so its runs, can't read the files.
#
# With a join token (`bloom-runtime key create NAME --scope join`) in the file that BLOOM_JOIN_TOKEN_FILE names, the script exchanges the
# token for a key that speaks for this worker only. Without a name above, the worker then has the name of the host.
#
# Other environment variables:
#   BLOOM_USER             the user that runs the agent; default: the user that called sudo, else a new user bloom-agent
#   MEMBRIDGE_AGENT_KEY_FILE, and BLOOM_MAX_CONCURRENCY, BLOOM_LISTEN and the like: settings of the agent, see `bloom-runtime agent --help`
#   BLOOM_CA_FILE          absolute path of a PEM file with the authority of the server's certificate, if this machine does not know it
#   BLOOM_TLS_CERT_FILE, BLOOM_TLS_KEY_FILE   absolute paths of the agent's client certificate and its key, which its user must be able to
#                          read, if the server asks for one
#   BLOOM_INIT             systemd or openrc; default: the one that runs here
#   DESTDIR                put the files below this directory, and start nothing
set -eu

say() { printf 'agent-install: %s\n' "$*"; }
die() {
	printf 'agent-install: %s\n' "$*" >&2
	exit 1
}

root=${DESTDIR:-}
etc=/etc/bloom-runtime

[ -n "$root" ] || [ "$(id -u)" = 0 ] || die "run this as root, for example with sudo"

bin=${BLOOM_RUNTIME_BIN:-$(command -v bloom-runtime || true)}
[ -n "$bin" ] || die "there is no bloom-runtime in PATH: install it, or set BLOOM_RUNTIME_BIN=/path/to/bloom-runtime"
[ -x "$bin" ] || die "$bin is not executable: correct BLOOM_RUNTIME_BIN"
case $bin in /*) ;; *) bin=$(pwd)/$bin ;; esac
# Service files have rules of their own for other characters.
plain() {
	case $2 in *[!A-Za-z0-9/._+-]*) die "$1 is $2, but a service needs a path of letters, digits and /._+- only: use another one" ;; esac
}
plain BLOOM_RUNTIME_BIN "$bin"

init=${BLOOM_INIT:-}
if [ -z "$init" ]; then
	if [ -d /run/systemd/system ]; then
		init=systemd
	elif command -v rc-service >/dev/null; then
		init=openrc
	fi
fi
case $init in
systemd | openrc) ;;
*) die "neither systemd nor OpenRC runs here; start '$bin agent' in another way" ;;
esac

user=${BLOOM_USER:-${SUDO_USER:-root}}
[ "$user" != root ] || user=bloom-agent
case $user in *[!A-Za-z0-9._-]* | -*) die "BLOOM_USER is not a valid user name" ;; esac
plain BLOOM_WORK_DIR "${BLOOM_WORK_DIR:-}"
case ${BLOOM_GRACE_SECONDS:-300} in *[!0-9]* | 0?*) die "BLOOM_GRACE_SECONDS must be a whole number of seconds" ;; esac

if [ -n "$PORT" ]; then
	BLOOM_LISTEN=${BLOOM_LISTEN:-0.0.0.0:$PORT}
	[ -n "${MEMBRIDGE_AGENT_KEY_FILE:-}" ] || [ -s "$root$etc/membridge-agent.key" ] ||
		die "the agent is to listen on port $PORT: set MEMBRIDGE_AGENT_KEY_FILE to a file with the key that the server sends (its MEMBRIDGE_AGENT_KEY)"
fi

# The settings that the agent gets from this script's environment.
settings="BLOOM_MAX_CONCURRENCY BLOOM_WORK_DIR BLOOM_RUNNER BLOOM_PROFILES BLOOM_LABELS BLOOM_LISTEN BLOOM_AGENT_URL BLOOM_PUSH_ONLY
	BLOOM_UPDATE_COMMAND BLOOM_GRACE_SECONDS BLOOM_GIT_PROTOCOLS BLOOM_MAX_CLONE_MIB BLOOM_CA_FILE BLOOM_TLS_CERT_FILE BLOOM_TLS_KEY_FILE"
for name in $settings; do
	eval "value=\${$name:-}"
	case $value in *"
"*) die "$name has a line break: a setting is one line" ;; esac
done
for name in BLOOM_CA_FILE BLOOM_TLS_CERT_FILE BLOOM_TLS_KEY_FILE; do
	eval "value=\${$name:-}"
	case $value in '' | /*) ;; *) die "$name is $value, but a service needs an absolute path: correct it" ;; esac
done

home=/var/lib/bloom-agent group=$user
if [ -z "$root" ]; then
	if ! id "$user" >/dev/null 2>&1; then
		if command -v useradd >/dev/null; then
			useradd --system --create-home --home-dir "$home" --shell /bin/sh "$user"
		else
			adduser -S -D -h "$home" -s /bin/sh "$user"
		fi
		say "created the user $user"
	fi
	home=$(awk -F: -v user="$user" '$1 == user { print $6 }' /etc/passwd)
	group=$(id -gn "$user")
	[ -n "$home" ] || die "the user $user has no home in /etc/passwd: set another one with BLOOM_USER"
fi

work=${BLOOM_WORK_DIR:-$home/.local/share/bloom-runtime/agent}
plain "the home of $user" "$home"

# By a new file, because the key may be the installed one.
copy_key() { # VARIABLE FILE NAME
	if ! cat "$2" >"$root$etc/$3.new"; then
		rm -f "$root$etc/$3.new"
		die "$2 can't be read: correct $1"
	fi
	mv "$root$etc/$3.new" "$root$etc/$3"
}

umask 077
mkdir -p "$root$etc"
if [ -n "${BLOOM_JOIN_TOKEN_FILE:-}" ]; then
	[ -z "${BLOOM_KEY_FILE:-}" ] || die "BLOOM_KEY_FILE and BLOOM_JOIN_TOKEN_FILE are both set: use only one of them"
	[ -r "$BLOOM_JOIN_TOKEN_FILE" ] || die "$BLOOM_JOIN_TOKEN_FILE can't be read: correct BLOOM_JOIN_TOKEN_FILE"
	# The key is for one name, so the agent must not choose another.
	[ -n "$NODE_ID" ] || NODE_ID=$(uname -n)
	if "$bin" key enroll --server "$SERVER_URL" --key-file "$BLOOM_JOIN_TOKEN_FILE" -- "$NODE_ID" >"$root$etc/agent.key.new"; then
		mv "$root$etc/agent.key.new" "$root$etc/agent.key"
	else
		rm -f "$root$etc/agent.key.new"
		die "$NODE_ID was not enrolled. A join token can be used once: create another one, or leave BLOOM_JOIN_TOKEN_FILE out to go on with the key of an earlier run"
	fi
elif [ -n "${BLOOM_KEY_FILE:-}" ]; then
	copy_key BLOOM_KEY_FILE "$BLOOM_KEY_FILE" agent.key
elif [ ! -f "$root$etc/agent.key" ]; then
	# Standard input may be the script itself, so the key is read from the terminal.
	(: </dev/tty) 2>/dev/null || die "there is no terminal to ask for the server's key: put the key into a file and set BLOOM_KEY_FILE"
	printf 'Key for %s (empty if it has none): ' "$SERVER_URL" >/dev/tty
	trap 'stty echo </dev/tty' EXIT INT TERM
	stty -echo </dev/tty
	IFS= read -r key </dev/tty
	stty echo </dev/tty
	trap - EXIT INT TERM
	printf '\n' >/dev/tty
	printf '%s' "$key" >"$root$etc/agent.key"
fi
if [ -n "${MEMBRIDGE_AGENT_KEY_FILE:-}" ]; then
	copy_key MEMBRIDGE_AGENT_KEY_FILE "$MEMBRIDGE_AGENT_KEY_FILE" membridge-agent.key
fi

# Every value stands between double quotes, as systemd and the OpenRC service read it.
setting() { printf '%s="%s"\n' "$1" "$(printf '%s' "$2" | sed 's/["\\$`]/\\&/g')"; }
setting_of_file() { [ ! -s "$2" ] || setting "$1" "$(cat "$2")"; }
for name in agent membridge-agent; do
	case $(cat "$root$etc/$name.key" 2>/dev/null || true) in *"
"*) die "$etc/$name.key has more than one line: a key is one line" ;; esac
done
{
	echo '# Written by agent-install.sh, which overwrites it. Only root may read it, because it has keys.'
	setting BLOOM_SERVER "$SERVER_URL"
	[ -z "$NODE_ID" ] || setting BLOOM_AGENT_NAME "$NODE_ID"
	for name in $settings; do
		eval "value=\${$name:-}"
		[ -z "$value" ] || setting "$name" "$value"
	done
	setting HOME "$home"
	setting PATH "$home/.local/bin:$PATH"
	setting_of_file BLOOM_KEY "$root$etc/agent.key"
	setting_of_file MEMBRIDGE_AGENT_KEY "$root$etc/membridge-agent.key"
} >"$root/etc/bloom-agent.env"
chmod 755 "$root$etc"

# The files of manifests/, with what is different on this machine.
put() { # PATH MODE, and the file at standard input
	mkdir -p "$root${1%/*}"
	sed -e "s|^User=bloom-agent$|User=$user|" -e "s|^command_user=bloom-agent$|command_user=$user|" \
		-e "s|create 0640 bloom-agent bloom-agent$|create 0640 $user $group|" \
		-e "s|/usr/bin/bloom-runtime|$bin|" -e "s|^ReadWritePaths=.*|& -$home -$work|" \
		-e "s|^TimeoutStopSec=.*|TimeoutStopSec=$((${BLOOM_GRACE_SECONDS:-300} + 30))|" >"$root$1"
	chmod "$2" "$root$1"
}
umask 022
case $init in
systemd) systemd_service | put /etc/systemd/system/bloom-agent.service 644 ;;
openrc)
	openrc_functions | put /usr/libexec/bloom-runtime/openrc.sh 644
	openrc_service | put /etc/init.d/bloom-agent 755
	logrotate | put /etc/logrotate.d/bloom-agent 644
	;;
esac

if [ -n "$root" ]; then
	say "the files are below $root; nothing was started"
	exit 0
fi
# A key is for root alone, whoever had its file before.
for name in agent membridge-agent; do
	[ ! -f "$etc/$name.key" ] || chown root "$etc/$name.key"
done
# An agent that was uninstalled through the server leaves this file, and does not start while it exists.
rm -f "$work/uninstalled"
if [ "$init" = systemd ]; then
	systemctl daemon-reload
	systemctl enable --quiet bloom-agent.service
	systemctl restart bloom-agent.service
	say "bloom-agent is running; its log: journalctl -u bloom-agent -f"
else
	rc-update add bloom-agent default
	rc-service bloom-agent restart
	say "bloom-agent is running; its state: rc-service bloom-agent status"
fi
