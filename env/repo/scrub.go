package repo

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// scrubScript does the work, on this machine and in sandboxes alike; its head says what scrubbed means.
//
//go:embed scrub.sh
var scrubScript string

// Executor runs a command where a repository lies. *env.Sandbox is one; [Host] runs it on this machine.
type Executor interface {
	Exec(ctx context.Context, cmd env.Command) (env.Result, error)
}

// Finding is one thing by which a repository is not scrubbed.
type Finding struct {
	Kind   string `json:"kind"`   // "object", "ref", "head", "file" or "setting" of .git, "nested" repository
	Name   string `json:"name"`   // for example "commit 1f0c…", "refs/tags/v2", ".git/logs/HEAD", "remote.origin.url", "./vendor/x/.git"
	Detail string `json:"detail"` // what is wrong with it, in words
}

// Proof is what was found out about a repository. It is scrubbed where Findings is empty.
type Proof struct {
	Base     string    `json:"base"`     // commit id; "" where the directory is no git repository, which has nothing to scrub
	Commits  int       `json:"commits"`  // base and what it descends from
	Objects  int       `json:"objects"`  // in the store: all of them reachable from Base
	Findings []Finding `json:"findings"` // every one but for objects, of which there are at most 40
}

// scrubBound is how long scrubbing or proving one repository may take.
const scrubBound = 30 * time.Minute

// ProveScrubbed checks that the repository in dir holds nothing but base and what base descends from: HEAD is base,
// every object in the store and every ref is reachable from it, .git has no file and no setting that could lead
// elsewhere (reflogs, alternates, worktrees, stores of submodules and of LFS, bundles, remotes, hooks), and no other
// repository lies inside. base is a commit id, "" for HEAD. dir is a path as on sees it, "" for the directory that
// commands start in. A directory without git passes where base is "".
//
// The image or machine needs a shell and git. Errors: KindInvalid for a repository that is not scrubbed (with the first
// findings in words, and all of them in the Proof) or has no such commit, KindUnavailable, KindCanceled.
func ProveScrubbed(ctx context.Context, on Executor, dir, base string) (Proof, error) {
	return runScrub(ctx, on, "prove", dir, base)
}

// Scrub makes the repository in dir one that [ProveScrubbed] accepts, and proves it. The new .git is made of what base
// reaches and put in place of the old one, so that whatever else lay there is gone: remotes, tags, other branches, later
// commits, stashes, notes, reflogs, hooks. HEAD becomes branch main at base; the index becomes base's, and working files
// stay as they are, so a change that was staged becomes an unstaged one. Repositories inside lose their .git. HEAD must be
// at base already. In a sandbox, Reset brings the old one back. After a failure the repository is the old one or the new one, or a second call finishes the work.
// Arguments and errors as of ProveScrubbed.
func Scrub(ctx context.Context, on Executor, dir, base string) (Proof, error) {
	return runScrub(ctx, on, "scrub", dir, base)
}

func runScrub(ctx context.Context, on Executor, what, dir, base string) (Proof, error) {
	op := "repo: " + what + " repository"
	if base != "" && !isObjectID(base) && !isLongID(base) {
		return Proof{}, milepost.E(op, milepost.KindInvalid, "base commit %q is neither empty nor 40 (or 64) lower-case hex digits", base)
	}
	if dir == "" {
		dir = "."
	}
	res, err := on.Exec(ctx, env.Command{Argv: []string{"sh", "-c", scrubScript, "scrub", what, dir, base},
		Limits: env.Limits{Wall: scrubBound, FileSize: 1 << 40}})
	if err != nil {
		return Proof{}, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	switch {
	case res.TimedOut || res.OutOfMemory || res.StdoutTruncated:
		return Proof{}, milepost.E(op, milepost.KindUnavailable, "%s: it did not end within its limits (time out: %t, out of memory: %t)", dir, res.TimedOut, res.OutOfMemory)
	case res.ExitCode == 127:
		return Proof{}, milepost.E(op, milepost.KindUnavailable, "%s: no shell to run it with: %s", dir, bytes.TrimSpace(res.Stderr))
	case res.ExitCode > 1 || res.ExitCode < 0:
		return Proof{}, milepost.E(op, milepost.KindInvalid, "%s: %s", dir, bytes.TrimSpace(res.Stderr))
	}
	p, err := parseProof(op, res.Stdout)
	if err != nil || len(p.Findings) == 0 {
		return p, err
	}
	return p, milepost.E(op, milepost.KindInvalid, "the repository in %s is not scrubbed: %s; run: milepost tasks scrub DIR, or rebuild the image from a scrubbed repository",
		dir, p.words())
}

// words names the first findings.
func (p Proof) words() string {
	const shown = 3
	var w []string
	for _, f := range p.Findings[:min(shown, len(p.Findings))] {
		w = append(w, f.Name+" "+f.Detail)
	}
	if more := len(p.Findings) - shown; more > 0 {
		w = append(w, "and "+strconv.Itoa(more)+" more")
	}
	return strings.Join(w, "; ")
}

// parseProof reads the script's output.
func parseProof(op string, out []byte) (p Proof, err error) {
	proven := false
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		switch {
		case len(f) == 4 && f[0] == "proof":
			proven = true
			p.Base = f[1]
			if p.Commits, err = strconv.Atoi(f[2]); err == nil {
				p.Objects, err = strconv.Atoi(f[3])
			}
			if err != nil {
				return Proof{}, milepost.E(op, milepost.KindUnavailable, "output %q: %w", line, err)
			}
		case len(f) == 3:
			p.Findings = append(p.Findings, Finding{f[0], f[1], f[2]})
		default: // a file name with a line feed or a tab in it
			p.Findings = append(p.Findings, Finding{"file", line, "is an odd name"})
		}
	}
	if proven == (len(p.Findings) > 0) {
		return Proof{}, milepost.E(op, milepost.KindUnavailable, "output %q holds neither a proof nor findings", out)
	}
	return p, nil
}

func isLongID(s string) bool { return len(s) == 64 && isObjectID(s[:40]) && isObjectID(s[24:]) }

// Host is the [Executor] of this machine, without a sandbox. Dir is where commands start, "" for the process's own.
type Host struct{ Dir string }

// Exec runs the command to its end, killing its process group when ctx ends. Of the limits only Wall holds.
func (h Host) Exec(ctx context.Context, cmd env.Command) (env.Result, error) {
	const op = "repo: run on this machine"
	if cmd.Limits.Wall > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cmd.Limits.Wall)
		defer cancel()
	}
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	var stdout, stderr bytes.Buffer
	c.Dir, c.Stdout, c.Stderr, c.Stdin = filepath.Join(h.Dir, cmd.Dir), &stdout, &stderr, bytes.NewReader(cmd.Stdin)
	c.Env = cleanEnv()
	for k, v := range cmd.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	began := time.Now()
	err := c.Run()
	res := env.Result{ExitCode: c.ProcessState.ExitCode(), Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Duration: time.Since(began)}
	if exit := (*exec.ExitError)(nil); err != nil && (ctx.Err() != nil || !errors.As(err, &exit)) {
		return res, milepost.Wrap(op, milepost.KindUnavailable, errors.Join(ctx.Err(), err))
	}
	return res, nil
}
