// Package repo holds repository states as git trees: the base checkout of a task, the difference of a later state from
// it, and the bytes of changed files in a content-addressed store. It knows git and nothing of sandboxes or tests.
//
// Where things live, one subject per file:
//
//	cache.go        the policy on which paths never count as changes
//	index.go        a tree as a map of paths, and its git tree id without calling git
//	layout.go       the same directory by directory, for the tree id of a difference
//	delta.go        the difference base → tree: checks, and making it from a sandbox's changes
//	blobs.go        the content-addressed blob store
//	store.go        the cache of base checkouts: one build per tree, whatever number of processes ask
//	build.go        how a base checkout is made and proven
//	folder.go       the same for a folder without git
//	materialise.go  a fresh, proven copy of base + delta on disk
//	patch.go        unified diffs out of and into deltas
//	scrub.go        a repository without what came after its base commit, and the proof of it, here or in a sandbox
//	gitcmd.go       how the git binary is called
//
// A new way to move a repository state about (another archive format, another patch dialect) gets a file of its own here.
package repo
