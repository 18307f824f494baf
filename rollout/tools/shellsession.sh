# Runs one command of a session: $1 is the directory the last one ended in, $2 its exported variables, $3 the command.
# The command's output and errors go to standard output, together as in a terminal; where and with what it ended goes to
# standard error, for the next command.
exec 3>&2 2>&1
eval "$2"
cd -- "$1" 2>/dev/null
trap '__ended=$?; { printf "%s\0" "$PWD"; export -p; } >&3; exit $__ended' EXIT
eval "$3"
