package orchestrator

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
)

// Stage makes one artifact directory of a pipeline or finds it made: name-HASH under dir, where HASH stands for key,
// the value of everything the artifact depends on. fn fills a fresh directory, which takes its place only when fn
// returns nil, so an artifact is whole or absent and a second pipeline reuses what is unchanged.
func Stage(dir, name string, key any, fn func(into string) error) (path string, reused bool, err error) {
	const op = "orchestrator: stage"
	path, err = StagePath(dir, name, key)
	if err != nil {
		return "", false, err
	}
	if _, err := os.Stat(path); err == nil {
		return path, true, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", false, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", false, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp := path + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755)); err != nil {
		return "", false, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := fn(tmp); err != nil {
		return "", false, errors.Join(err, os.RemoveAll(tmp))
	}
	return path, false, milepost.Wrap(op, milepost.KindUnavailable, os.Rename(tmp, path))
}

// StagePath is where Stage puts the artifact of a name and key.
func StagePath(dir, name string, key any) (string, error) {
	b, err := json.Marshal(key)
	if err != nil {
		return "", milepost.Wrap("orchestrator: stage", milepost.KindInternal, err)
	}
	sum := sha256.Sum256(b)
	return filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:6])), nil
}
