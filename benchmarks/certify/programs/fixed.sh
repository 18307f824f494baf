# Prints what the reference patch on standard input makes of the repository in the current folder: git's raw lines. The
# repository is not written to. Exit code 1: the patch does not apply.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
real=$(git -c safe.directory='*' rev-parse --absolute-git-dir)
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
mkdir "$tmp/objects"
export GIT_INDEX_FILE="$tmp/index" GIT_OBJECT_DIRECTORY="$tmp/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$real/objects"
git read-tree HEAD
git apply --cached --whitespace=nowarn - 2>/dev/null || exit 1
git diff-index --cached --raw --no-renames --no-abbrev HEAD
