package configs

import (
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/apptainer"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/local"
)

// The sandbox drivers.
const (
	SandboxLocal     = "local"
	SandboxDocker    = "docker"
	SandboxApptainer = "apptainer"
)

// Sandbox chooses the driver. The fields of the local one stand beside the choice, those of the others in their sections.
type Sandbox struct {
	Driver       string `yaml:"driver"` // local: bubblewrap and overlayfs on this machine; docker: containers, see docker; apptainer: containers of Apptainer or Singularity, for clusters, see apptainer
	local.Config `yaml:",inline"`
	Docker       docker.Config    `yaml:"docker"`    // Docker or Podman engines, where driver is docker
	Apptainer    apptainer.Config `yaml:"apptainer"` // the program and its images, where driver is apptainer
}

func (s Sandbox) validate() error {
	const op = "configs: sandbox"
	switch s.Driver {
	case SandboxLocal:
		return s.Config.Validate()
	case SandboxDocker:
		if s.Docker.Image == "" {
			return milepost.E(op, milepost.KindInvalid, "docker.image is empty; driver docker needs an image for the tasks that name none, for example python:3.11")
		}
		return s.Docker.Validate()
	case SandboxApptainer:
		if s.Apptainer.Image == "" {
			return milepost.E(op, milepost.KindInvalid, "apptainer.image is empty; driver apptainer needs an image for the tasks that name none, for example /images/python.sif or docker://python:3.11")
		}
		return s.Apptainer.Validate()
	}
	return milepost.E(op, milepost.KindInvalid, "driver is %q; allowed: %s, %s, %s", s.Driver, SandboxLocal, SandboxDocker, SandboxApptainer)
}

// sharesFolders says whether sandboxes can see folders of this machine, as resident tests need.
func (s Sandbox) sharesFolders() bool { return s.Driver != SandboxDocker || s.Docker.Local() }
