# Functions of the services bloom-runtime and bloom-agent, for openrc-run.

# Exports the lines NAME=VALUE of a file. The file is not run as a script: a value goes to the end of its line, and quotes around it do not
# belong to it. EnvironmentFile of systemd reads such a file alike. PATH becomes `program_path` instead: its directories may belong to the
# user of the program, and root runs the rest of the service.
read_environment() {
	local line name value number=0
	while IFS= read -r line || [ -n "$line" ]; do
		number=$((number + 1))
		# Without blanks at the end, and without the return of DOS.
		line=${line%"${line##*[![:space:]]}"}
		case $line in '' | '#'*) continue ;; esac
		name=${line%%=*}
		value=${line#*=}
		case $name in
		"$line" | '' | [0-9]* | *[!A-Za-z0-9_]*)
			eerror "$1: line $number is not NAME=VALUE"
			return 1
			;;
		esac
		case $value in
		\'*\'*\' | \'*[!\'] | \' | \"*[!\"] | \")
			eerror "$1: line $number: put the value of $name between two quotes"
			return 1
			;;
		\'*) value=${value#\'} value=${value%\'} ;;
		\"*)
			value=${value#\"}
			value=$(printf '%s' "${value%\"}" | sed 's/\\\(["\\$`]\)/\1/g')
			;;
		*[\\\"\']*)
			eerror "$1: line $number: put the value of $name between single quotes"
			return 1
			;;
		esac
		case $name in
		PATH) program_path=$value ;;
		*) export "$name=$value" ;;
		esac
	done <"$1"
}

# Makes the log files before the service's user writes to them, who may create no files there.
make_logs() {
	checkpath --file --owner "$command_user" --mode 0640 "$LOG_FILE" && checkpath --file --owner "$command_user" --mode 0640 "$error_log"
}

# Sends SIGHUP to the program: it opens its log file anew.
reload() {
	ebegin "Reloading $name"
	supervise-daemon "$RC_SVCNAME" --signal HUP --pidfile "$pidfile"
	eend $?
}
