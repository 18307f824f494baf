package apptainer

import (
	"bytes"
	"encoding/csv"
	"os"
	"strings"

	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
)

// inside are the variables that every command gets; the program itself lets none of the host's in.
var inside = []string{"HOME=/tmp", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"}

// execArgs is the command line of one sandbox.
func (d *Driver) execArgs(spec *driver.Spec, image string, p *places) []string {
	a := []string{"--quiet", "exec", "--containall", "--no-home", "--no-init", "--no-eval", "--no-privs", "--hostname", "sandbox",
		"--no-mount", "home,tmp,cwd,hostfs,sys,bind-paths"}
	if !spec.Network {
		a = append(a, "--net", "--network", "none")
	}
	if asRoot() {
		uid, gid, _ := strings.Cut(d.cfg.User, ":")
		a = append(a, "--security", "uid:"+uid, "--security", "gid:"+gid)
	}
	a = append(a, "--mount", bind(d.agent, agent.Path, false))
	for _, b := range p.binds() {
		a = append(a, "--mount", bind(b.host, b.path, true))
	}
	for _, m := range spec.Mounts {
		a = append(a, "--mount", bind(m.Host, m.Path, m.Writable))
	}
	a = append(a, image)
	return append(a, agent.Argv(d.cfg.Lease)...)
}

// bind is one value of --mount, which is a line of CSV: a path may hold anything.
func bind(host, path string, writable bool) string {
	fields := []string{"type=bind", "source=" + host, "destination=" + path}
	if !writable {
		fields = append(fields, "ro")
	}
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(fields) // a buffer takes everything
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// kept are the program's own variables that a site may need: where it keeps and makes images, and whom it is to a registry.
// The others, APPTAINER_BIND above all, would open the sandbox; APPTAINERENV_ ones would be set inside.
var kept = []string{"CACHEDIR", "TMPDIR", "PULLFOLDER", "DOCKER_USERNAME", "DOCKER_PASSWORD", "CONFIGDIR", "DISABLE_CACHE"}

// programEnv is the environment of the program itself.
func programEnv(environ []string) []string {
	var out []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range []string{"APPTAINER", "SINGULARITY"} {
			rest, ours := strings.CutPrefix(name, prefix)
			if !ours {
				continue
			}
			name = ""
			for _, k := range kept {
				if rest == "_"+k {
					name = kv
				}
			}
		}
		if name != "" {
			out = append(out, kv)
		}
	}
	return out
}

func hostEnv() []string { return programEnv(os.Environ()) }
