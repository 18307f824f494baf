package repo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost"
)

// hostile puts a program into the repository's surroundings that leaves a mark where it is run, and returns both paths.
func hostile(t *testing.T) (program, mark string) {
	t.Helper()
	dir := t.TempDir()
	program, mark = filepath.Join(dir, "program"), filepath.Join(dir, "mark")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho run >>"+mark+"\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, mark
}

// TestNothingOfTheRepositoryIsRun: a repository names programs in its settings, for signatures, transports, filters and
// file monitors. It may come from anywhere, and is scrubbed on the host.
func TestNothingOfTheRepositoryIsRun(t *testing.T) {
	for name, plant := range map[string]func(dir, program string){
		"signatures": func(dir, program string) {
			for k, v := range map[string]string{"log.showSignature": "true", "gpg.program": program, "gpg.openpgp.program": program} {
				runGit(t, dir, "config", k, v)
			}
			put(t, "tree "+runGit(t, dir, "rev-parse", "HEAD^{tree}")+"\nauthor a <a@a> 1 +0000\ncommitter a <a@a> 1 +0000\n"+
				"gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\nsigned\n", dir, "..", "signed")
			runGit(t, dir, "hash-object", "-w", "-t", "commit", "../signed")
		},
		"transport": func(dir, program string) { lacking(t, dir, program, "a.py") },
		"filter": func(dir, program string) {
			put(t, "* filter=x\n", dir, ".git", "info", "attributes")
			for k, v := range map[string]string{"filter.x.clean": program, "filter.x.smudge": program, "filter.x.process": program, "filter.x.required": "true"} {
				runGit(t, dir, "config", k, v)
			}
			put(t, "another\n", dir, "a.py")
		},
		"monitor": func(dir, program string) { runGit(t, dir, "config", "core.fsmonitor", program) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := leaky(t)
			program, mark := hostile(t)
			plant(dir, program)
			_, errProve := ProveScrubbed(t.Context(), Host{}, dir, "")
			_, errScrub := Scrub(t.Context(), Host{}, dir, "")
			if _, err := os.Stat(mark); err == nil {
				t.Errorf("a program of the repository was run (prove: %v, scrub: %v)", errProve, errScrub)
			}
			if errProve == nil {
				t.Error("the settings were not found")
			}
		})
	}
}

// lacking makes a partial clone that fetches the blob of a path, which it lacks, by the program.
func lacking(t *testing.T, dir, program, path string) {
	t.Helper()
	blob := runGit(t, dir, "rev-parse", "HEAD:"+path)
	if err := os.Remove(filepath.Join(dir, ".git/objects", blob[:2], blob[2:])); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"core.repositoryformatversion": "1", "extensions.partialClone": "origin",
		"remote.origin.url": dir, "remote.origin.promisor": "true", "remote.origin.uploadpack": program} {
		runGit(t, dir, "config", k, v)
	}
}

// TestBaseRunsNothingOfTheRepository: a task's repository that fetches what it lacks is refused, and its program not run.
func TestBaseRunsNothingOfTheRepository(t *testing.T) {
	task := sampleTask(t, map[string]file{"a.py": {ModeFile, "a\n"}})
	program, mark := hostile(t)
	lacking(t, task.Repo, program, "a.py")
	s, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Base(t.Context(), task)
	wantKind(t, err, milepost.KindCorrupt)
	if _, err := os.Stat(mark); err == nil {
		t.Errorf("a program of the repository was run")
	}
}

// bare makes what git takes for a repository without a working tree.
func bare(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"HEAD", "objects/x", "refs/x"} {
		put(t, "ref: refs/heads/main\n", dir, name)
	}
}

// TestScrubRemovesNothingElse: names with line feeds and blanks around them are names, and no lists of paths.
func TestScrubRemovesNothingElse(t *testing.T) {
	dir, base := leaky(t)
	outside := filepath.Join(t.TempDir(), "outside")
	bare(t, outside)
	bare(t, filepath.Join(dir, "a\n"+outside)) // its second line is a path of the host
	put(t, "kept", dir, "a", "kept")
	bare(t, filepath.Join(dir, "lib ")) // ends with a blank
	put(t, "kept", dir, "lib", "kept")
	put(t, "kept", dir, "-rf", "kept")
	bare(t, filepath.Join(dir, "-rf", "-x"))
	p, err := Scrub(t.Context(), Host{}, dir, base)
	if err != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	for _, name := range []string{filepath.Join(outside, "HEAD"), filepath.Join(dir, "a", "kept"), filepath.Join(dir, "lib", "kept"), filepath.Join(dir, "-rf", "kept")} {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("removed: %v", err)
		}
	}
	for _, name := range []string{"a\n" + outside, "lib ", "-rf/-x"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("the repository in %q is still there", name)
		}
	}
}

// TestScrubOfRelativeFolders: where a relative folder lies does not depend on CDPATH or the shell's last folder.
func TestScrubOfRelativeFolders(t *testing.T) {
	dir, base := leaky(t)
	other, _ := leaky(t)
	t.Setenv("CDPATH", filepath.Dir(other))
	t.Setenv("OLDPWD", other)
	runGit(t, other, "tag", "kept")
	if _, err := Scrub(t.Context(), Host{Dir: filepath.Dir(dir)}, "repo", base); err != nil {
		t.Error(err)
	}
	if _, err := Scrub(t.Context(), Host{Dir: filepath.Dir(dir)}, "-", ""); err == nil {
		t.Error(`a folder named "-" is not there`)
	}
	if got := runGit(t, other, "tag"); got != "kept" {
		t.Errorf("the other repository was scrubbed: tags %q", got)
	}
	if got := runGit(t, dir, "branch", "--show-current"); got != "main" {
		t.Errorf("the named repository was not scrubbed: branch %q", got)
	}
}
