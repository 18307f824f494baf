package trainerbridge

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
)

//go:embed python/envs/*.txt
var locks embed.FS

// The sources of the trainer and of the vLLM plugin travel in the program, so an installed binary needs no checkout.
//
//go:embed python/milepost_trainer/*.py python/milepost_trainer/pb/*.py python/milepost_vllm/*.py python/milepost_vllm-1.dist-info/*
var sources embed.FS

// The pinned Python environments.
const (
	EnvServer   = "server"   // the vLLM server
	EnvTrainer  = "trainer"  // the trainer; also has pytest, for tasks whose tests need it
	EnvTools    = "tools"    // linters and code generators
	EnvTrackers = "trackers" // experiment trackers; installed only where one is enabled
	EnvBench    = "bench"    // what make bench measures beside
)

// Home is where environments and other things shared by all runs lie: $MILEPOST_HOME, or milepost in the user's cache
// directory.
func Home() (string, error) {
	if h := os.Getenv("MILEPOST_HOME"); h != "" {
		return filepath.Abs(h)
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		h, err := os.UserHomeDir()
		if err != nil {
			return "", milepost.E("trainerbridge: home", milepost.KindNotFound, "no home directory (%w); set MILEPOST_HOME", err)
		}
		cache = filepath.Join(h, ".cache")
	}
	return filepath.Join(cache, "milepost"), nil
}

// Environment returns the directory of a pinned environment, as python/envs/install makes it: its name carries the hash
// of the requirements that this program was built with. An environment that is missing is an error of kind not_found
// that says how to make it.
func Environment(name string) (string, error) {
	const op = "trainerbridge: find environment"
	lock, err := locks.ReadFile("python/envs/" + name + ".txt")
	if err != nil {
		return "", milepost.E(op, milepost.KindInvalid, "environment %q is not one of server, trainer, tools, trackers, referee, bench", name)
	}
	home, err := Home()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(home, "envs", name+"-"+hex.EncodeToString(sum[:])[:12])
	if _, err := os.Stat(filepath.Join(dir, ".complete")); err != nil {
		return "", milepost.E(op, milepost.KindNotFound, "the pinned %s environment is not installed at %s; run: trainer_bridge/python/envs/install %s (make deps does it for server, trainer and tools)", name, dir, name)
	}
	return dir, nil
}

// PythonPath writes the embedded packages, the trainer's and the vLLM plugin's, below Home, once per content, and returns
// the directory to put on PYTHONPATH of either process.
func PythonPath() (string, error) {
	const op = "trainerbridge: unpack trainer"
	home, err := Home()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	files := map[string][]byte{}
	err = fs.WalkDir(sources, "python", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := sources.ReadFile(path)
		files[path] = b
		h.Write([]byte(path + "\x00"))
		h.Write(b)
		return err
	})
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInternal, err)
	}
	dir := filepath.Join(home, "trainer", hex.EncodeToString(h.Sum(nil))[:12])
	if _, err := os.Stat(dir); err == nil {
		return filepath.Join(dir, "python"), nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".tmp-*")
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(tmp)
	for path, b := range files {
		err = errors.Join(err, os.MkdirAll(filepath.Join(tmp, filepath.Dir(path)), 0o755), os.WriteFile(filepath.Join(tmp, path), b, 0o644))
	}
	if err == nil {
		if err = os.Rename(tmp, dir); errors.Is(err, fs.ErrExist) {
			err = nil // another process was first
		}
	}
	return filepath.Join(dir, "python"), milepost.Wrap(op, milepost.KindUnavailable, err)
}
