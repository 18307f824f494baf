package docker

import (
	"context"
	"strings"

	"github.com/distribution/reference"

	"github.com/milepost-rl/milepost"
)

// Digest gets the image onto every engine that can be asked and returns a reference to exactly it: its repository with the
// registry's digest, or the image's id where it is on no registry. Kinds as of Create; conflict where two engines have
// different images under the name.
func (d *Driver) Digest(ctx context.Context, image string) (string, error) {
	const op = "env/docker: digest"
	image, err := d.cfg.image(image)
	if err != nil {
		return "", err
	}
	if err := d.Prepull(ctx, []string{image}); err != nil {
		return "", err
	}
	found, on := "", ""
	for _, e := range d.engines {
		if !e.healthy() {
			continue
		}
		info, err := e.cli.ImageInspect(ctx, image)
		if err != nil {
			return "", engineError("inspect image "+image, err)
		}
		is := pinned(image, info.ID, info.RepoDigests)
		if found != "" && found != is {
			return "", milepost.E(op, milepost.KindConflict, "image %s is %s on engine %s and %s on %s; remove the wrong one", image, found, on, is, e.host)
		}
		found, on = is, e.host
	}
	if found == "" {
		return "", milepost.E(op, milepost.KindUnavailable, "no Docker engine is usable: %s", d.ailments())
	}
	return found, nil
}

// pinned chooses among the digests under which an engine knows an image that of the repository it was named by.
func pinned(image, id string, digests []string) string {
	ref, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return id
	}
	for _, d := range digests {
		other, err := reference.ParseNormalizedNamed(d)
		if err == nil && other.Name() == ref.Name() {
			return d
		}
	}
	for _, d := range digests { // pulled under another name, through a mirror for example
		if strings.Contains(d, "@") {
			return d
		}
	}
	return id
}
