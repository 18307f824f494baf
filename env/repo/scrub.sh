# Scrubs a git repository, or proves that it is scrubbed. Run as: sh -c "$(cat scrub.sh)" scrub prove|scrub DIR [BASE]
# BASE is a full commit id, "" for HEAD. It needs a POSIX shell, git (2.11 or later), find, grep, sed, sort, comm, cut.
#
# Exit code 0: scrubbed; the last line of the output is  proof <TAB> base <TAB> commits <TAB> objects.
# Exit code 1: not scrubbed; a line  kind <TAB> name <TAB> detail  for each finding, at most 40 of objects.
# Exit code 2: it could not be told or done; the reason is on standard error.
#
# What is scrubbed: .git is a directory of its own, with known files and known settings alone; HEAD is BASE; every object
# of the store, and every ref, is reachable from BASE. Reachability and not dates, since a date is what a committer's
# clock said: what BASE reaches was there when BASE was made, and nothing else is left. Grafts, replacements and commit
# graphs, which can make git see another history, are not believed.
set -u
what=$1 dir=$2 base=$3
fail() { printf '%s\n' "$*" >&2; exit 2; }
for tool in git find grep sed sort comm cut mktemp; do
	command -v "$tool" >/dev/null 2>&1 || fail "$tool is not installed here"
done
case $dir in /*) ;; *) dir=./$dir ;; esac # neither CDPATH nor "-", the last folder, mean anything
cd "$dir" || fail "$dir is no directory that can be entered"
tmp=$(mktemp -d) || fail "no temporary folder can be made"
trap 'rm -rf "$tmp"' EXIT
trap 'exit 2' HUP INT TERM
for name in $(env | sed -n 's/^\(GIT_[A-Z_0-9]*\)=.*/\1/p'); do unset "$name"; done
printf '[safe]\n\tdirectory = *\n' >"$tmp/.gitconfig"
export LC_ALL=C HOME="$tmp" XDG_CONFIG_HOME="$tmp" GIT_CONFIG_GLOBAL="$tmp/.gitconfig" GIT_CONFIG_NOSYSTEM=1
export GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_ALLOW_PROTOCOL=none GIT_GRAFT_FILE="$tmp/no-grafts" GIT_TERMINAL_PROMPT=0 GIT_CEILING_DIRECTORIES="${PWD%/*}"
# No program that the repository's settings name is run: it may come from anywhere.
git() { command git -c core.commitGraph=false -c core.fsmonitor=false -c log.showSignature=false -c core.hooksPath=/dev/null -c gc.auto=0 "$@"; }
new=.git.milepost-new ready=.git.milepost-ready tab=$(printf '\t')
settings='core\.(repositoryformatversion|filemode|bare|logallrefupdates|symlinks|ignorecase|precomposeunicode|autocrlf|eol|safecrlf)|extensions\.objectformat|user\.(name|email)'

# each looks at paths that find passes: those of a .git below the root, and of folders named objects, which show a repository
# without a .git; one that the base tree itself holds, as test data, is no leak. Paths are arguments and never lines: a
# name may hold line feeds and end with blanks.
each='act=$1 base=$2; shift 2
for p; do
	case $p in */objects)
		p=${p%/objects}
		[ -d "$p/refs" ] && [ -f "$p/HEAD" ] || continue
		git -c core.commitGraph=false cat-file -e "$base:${p#./}/HEAD" 2>/dev/null && continue ;;
	esac
	if [ "$act" = remove ]; then rm -rf "$p"
	else printf "nested\t%s\ta repository inside the repository\n" "$(printf %s "$p" | tr "\n\t" "??")"; fi
done'
nested() { # nested report|remove: what each does with every repository inside
	find . -path ./.git -prune -o -name .git -prune -exec sh -c "$each" sh "$1" "${base:-HEAD}" {} + \
		-o -type d -name objects -exec sh -c "$each" sh "$1" "${base:-HEAD}" {} +
}

# resolve sets base to the full id of the commit that it names.
resolve() {
	id=$(git rev-parse --verify --quiet "${base:-HEAD}^{commit}") || fail "the repository in $dir has no commit ${base:-at HEAD}"
	base=$id
}

files() { # names what is in .git and is none of the parts of a scrubbed repository
	find .git -type l | sed "s/.*/file$tab&${tab}a link/"
	find .git ! -type d ! -type l | grep -vE '^\.git/((HEAD|config|description|index|packed-refs|shallow)|info/(exclude|attributes)|refs/.+|hooks/[^/]+\.sample|objects/([0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]+\.(pack|idx|rev)|info/packs))$' |
		sed "s/.*/file$tab&${tab}is none of the files that a scrubbed repository has/"
	for pack in .git/objects/pack/*.pack; do
		[ -e "$pack" ] && [ ! -e "${pack%.pack}.idx" ] && printf 'file\t%s\ta pack without index\n' "$pack"
	done
	git config -f .git/config --name-only --list | grep -vixE "$settings" | sed "s/.*/setting$tab&${tab}is none of the settings that a scrubbed repository has/"
}

objects() { # names refs and objects that base does not reach
	head=$(git rev-parse --verify --quiet HEAD)
	[ "$head" = "$base" ] || printf 'head\tHEAD\tis at %s, not at the base commit\n' "${head:-no commit}"
	git rev-list --objects "$base" >"$tmp/walk" 2>"$tmp/err" || fail "not all objects of $base are there: $(cat "$tmp/err")"
	cut -d' ' -f1 "$tmp/walk" | sort >"$tmp/reached"
	git cat-file --batch-all-objects --batch-check='%(objectname)' 2>"$tmp/err" >"$tmp/list" || fail "objects cannot be listed: $(cat "$tmp/err")"
	sort "$tmp/list" >"$tmp/all"
	comm -13 "$tmp/reached" "$tmp/all" >"$tmp/extra"
	git cat-file --batch-check='%(objecttype) %(objectname)' <"$tmp/extra" >"$tmp/typed"
	{ grep '^commit' "$tmp/typed"; grep '^tag' "$tmp/typed"; grep '^blob' "$tmp/typed"; grep '^tree' "$tmp/typed"; } | head -n 40 |
		while read -r type id; do
			said=
			[ "$type" = commit ] && said=" of $(git log -1 --format='%cI "%s"' "$id" | tr '\t' ' ')"
			printf 'object\t%s %s\t%s\n' "$type" "$id" "is not reachable from the base commit$said"
		done
	git for-each-ref --format='%(objectname) %(refname)' >"$tmp/refs" 2>"$tmp/err" || fail "refs cannot be listed: $(cat "$tmp/err")"
	sed "s/.*/ref$tab&${tab}git says/" "$tmp/err"
	cut -d' ' -f1 "$tmp/refs" | sort -u | comm -13 "$tmp/reached" - >"$tmp/astray"
	grep -F -f "$tmp/astray" "$tmp/refs" | while read -r id ref; do
		printf 'ref\t%s\tis at %s, which is not reachable from the base commit\n' "$ref" "$id"
	done
	if [ -e .git/shallow ]; then
		sort .git/shallow | comm -23 - "$tmp/reached" | sed "s/.*/file$tab.git\/shallow${tab}names &, which is not reachable from the base commit/"
	fi
}

prove() {
	nested report >"$tmp/nested"
	: >"$tmp/found"
	if [ -L .git ] || { [ -e .git ] && [ ! -d .git ]; }; then
		printf 'file\t.git\tleads to a repository elsewhere\n' >>"$tmp/found"
	elif [ -d .git ]; then
		resolve
		objects >>"$tmp/found"
		files >>"$tmp/found"
		commits=$(git rev-list --count "$base") total=$(wc -l <"$tmp/all")
	elif [ -n "$base" ]; then
		fail "$dir is no git repository"
	fi
	cat "$tmp/nested" >>"$tmp/found"
	cat "$tmp/found"
	[ -s "$tmp/found" ] && exit 1
	printf 'proof\t%s\t%s\t%s\n' "$base" "${commits:-0}" "$((${total:-0}))"
}

# build makes the new .git beside the old: the objects that base reaches, and what else is known to tell nothing.
build() {
	mkdir -p "$new/objects/pack" "$new/objects/info" "$new/refs/heads" "$new/info" || fail "no folder can be made in $dir"
	printf '%s\n' "$base" | git pack-objects -q --revs --delta-base-offset --window=0 --threads=1 "$new/objects/pack/pack" >/dev/null 2>"$tmp/err" ||
		fail "the objects of $base cannot be packed: $(cat "$tmp/err")"
	printf 'ref: refs/heads/main\n' >"$new/HEAD" && printf '%s\n' "$base" >"$new/refs/heads/main" || fail "$dir cannot be written to"
	git config --local --name-only --list | grep -ixE "$settings" | sort -u | while read -r key; do
		git config -f "$new/config" "$key" "$(git config --local --get "$key")" || exit 1
	done || fail "settings cannot be written"
	git config -f "$new/config" core.bare false && git config -f "$new/config" core.repositoryformatversion \
		"$(git config --local --get core.repositoryformatversion || echo 0)" || fail "settings cannot be written"
	for name in exclude attributes; do
		from=$(git rev-parse --git-path "info/$name")
		if [ -f "$from" ]; then cp "$from" "$new/info/$name" || fail "info/$name cannot be copied"; fi
	done
	from=$(git rev-parse --git-path shallow)
	if [ -s "$from" ]; then # a shallow clone stays one, of the base's own ends
		git rev-list "$base" | sort >"$tmp/reached"
		sort "$from" | comm -12 - "$tmp/reached" >"$new/shallow"
		[ -s "$new/shallow" ] || rm "$new/shallow"
	fi
	GIT_DIR=$new GIT_WORK_TREE=. git read-tree "$base" 2>"$tmp/err" || fail "no index can be made: $(cat "$tmp/err")"
	GIT_DIR=$new GIT_WORK_TREE=. git update-index -q --refresh >/dev/null 2>&1 # only speeds up: changed files are no error
	if [ "$(id -u)" = 0 ]; then chown -R -h "$(stat -c %u:%g .)" "$new" || fail "$new cannot be given to the owner of $dir"; fi
}

scrub() {
	if [ -d "$ready" ]; then # an earlier scrub was ended between the removal of the old .git and this line
		rm -rf .git && mv "$ready" .git || fail ".git cannot be replaced"
	fi
	rm -rf "$new"
	[ -e .git ] || fail "$dir is no git repository"
	resolve
	[ "$(git rev-parse --verify --quiet HEAD)" = "$base" ] || fail "HEAD is not at $base; check that commit out first, or the files of another one stay"
	[ "$(git config --bool --get core.sparseCheckout)" != true ] || fail "the checkout is sparse; run git sparse-checkout disable first"
	build
	mv "$new" "$ready" && rm -rf .git && mv "$ready" .git || fail ".git cannot be replaced"
	nested remove
}

case $what in
prove) ;;
scrub) scrub ;;
*) fail "$what is neither prove nor scrub" ;;
esac
prove
