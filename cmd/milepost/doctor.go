package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/apptainer"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/internal/vllm"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

func newDoctorCommand() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has, what is missing, and how to get it",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadRun(flags, "")
			if err != nil {
				return err
			}
			bad := 0
			for _, f := range diagnose(cfg) {
				mark := "ok     "
				if !f.ok {
					mark = "missing"
					if !f.needed {
						mark = "note   "
					} else {
						bad++
					}
				}
				fmt.Fprintf(c.OutOrStdout(), "%s  %-22s %s\n", mark, f.what, f.text)
			}
			if bad > 0 {
				return milepost.E("doctor", milepost.KindNotFound, "%d things are missing", bad)
			}
			return nil
		},
	}
	flags.register(c, "quickstart")
	return c
}

// finding is one line of a diagnosis.
type finding struct {
	what, text string
	ok, needed bool
}

// diagnose looks at everything that a run of this configuration needs of the machine.
func diagnose(cfg configs.Run) []finding {
	out := []finding{{what: "machine", ok: true, text: fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())}, memory(), disk(cfg.Run.Dir)}
	for _, program := range []string{"git", "python3"} {
		path, err := exec.LookPath(program)
		out = append(out, finding{what: program, ok: err == nil, needed: true, text: orElse(path, "not on PATH; install the package "+program)})
	}
	out = append(out, sandbox(cfg))
	if len(cfg.Server.URLs) > 0 {
		for _, u := range cfg.Server.URLs {
			out = append(out, reachable(u))
		}
	} else if len(cfg.Server.Command) == 0 {
		out = append(out, environment(trainerbridge.EnvServer))
	}
	if cfg.Trainer.Address == "" {
		out = append(out, environment(trainerbridge.EnvTrainer))
	}
	return out
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func memory() finding {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return finding{what: "memory", text: err.Error()}
	}
	gib := float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	return finding{what: "memory", ok: gib >= 7, text: fmt.Sprintf("%.1f GiB (a vLLM server and a trainer on CPU want 8)", gib)}
}

func disk(dir string) finding {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return finding{what: "disk", text: err.Error()}
	}
	gib := float64(s.Bavail) * float64(s.Bsize) / (1 << 30)
	return finding{what: "disk", ok: gib >= 2, needed: true, text: fmt.Sprintf("%.1f GiB free at %s (2 wanted)", gib, dir)}
}

// sandbox tries a real one.
func sandbox(cfg configs.Run) finding {
	f := finding{what: "sandbox", needed: true}
	root, err := os.MkdirTemp("", "milepost-doctor-")
	if err != nil {
		f.text = err.Error()
		return f
	}
	defer os.RemoveAll(root)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := cfg.Sandbox
	c.Root = filepath.Join(root, "sandboxes")
	if c.Apptainer.Images == "" && c.Apptainer.Root != "" {
		c.Apptainer.Images = filepath.Join(c.Apptainer.Root, "images") // those of the runs: a pull takes minutes
	}
	c.Apptainer.Root = c.Root
	boxes, err := openSandboxes(ctx, c, c.Root)
	if err != nil {
		f.text = err.Error()
		return f
	}
	e := env.New(boxes)
	defer e.Close()
	base := filepath.Join(root, "base")
	if err := os.MkdirAll(base, 0o755); err != nil {
		f.text = err.Error()
		return f
	}
	box, err := e.Create(ctx, env.Spec{Name: "doctor", Base: base})
	if err != nil {
		f.text = err.Error()
		return f
	}
	defer box.Close(ctx)
	r, err := box.Exec(ctx, env.Command{Argv: []string{"python3", "-c", "print('fine')"}})
	switch {
	case err != nil:
		f.text = err.Error()
	case r.ExitCode != 0:
		f.text = strings.TrimSpace(string(r.Stderr))
	default:
		f.ok, f.text = true, "bubblewrap runs commands without network"
	}
	if d, ok := boxes.(*apptainer.Driver); ok && f.ok {
		f.text = "containers of image " + c.Apptainer.Image + " run commands without network; " + d.Describe()
	}
	if d, ok := boxes.(*docker.Driver); ok && f.ok {
		var engines []string
		if engines, err = d.Engines(ctx); err != nil {
			f.ok, f.text = false, err.Error()
		} else {
			f.text = "containers of image " + c.Docker.Image + " run commands without network on " + strings.Join(engines, ", ")
		}
	}
	return f
}

func reachable(url string) finding {
	f := finding{what: "server", needed: true, text: url}
	client, err := vllm.New(vllm.Config{URL: url})
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = client.Health(ctx)
	}
	if err != nil {
		f.text = err.Error()
		return f
	}
	f.ok = true
	return f
}

func environment(name string) finding {
	dir, err := trainerbridge.Environment(name)
	if err != nil {
		return finding{what: name + " environment", needed: true, text: err.Error()}
	}
	return finding{what: name + " environment", ok: true, text: dir}
}
