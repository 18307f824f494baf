package main

import (
	"os"
	"path/filepath"

	"github.com/milepost-rl/milepost"
)

// userCache is a folder for what is kept between commands: the one that the flag named, or of the given name below the
// user's cache folder.
func userCache(named, name, flag string) (string, error) {
	if named != "" {
		return named, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", milepost.E("find cache folder", milepost.KindInvalid, "the user has none (%w); give %s", err, flag)
	}
	return filepath.Join(dir, "milepost", name), nil
}
