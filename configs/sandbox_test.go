package configs

import (
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

func TestSandboxDrivers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Sandbox)
		words  string // of the error; "" where there is none
	}{
		"apptainer":               {func(s *Sandbox) { s.Driver, s.Apptainer.Image = SandboxApptainer, "/images/python.sif" }, ""},
		"apptainer without image": {func(s *Sandbox) { s.Driver = SandboxApptainer }, "apptainer.image is empty"},
		"apptainer as root":       {func(s *Sandbox) { s.Driver, s.Apptainer.Image, s.Apptainer.User = SandboxApptainer, "/x.sif", "0:0" }, "is root"},
		"docker without image":    {func(s *Sandbox) { s.Driver = SandboxDocker }, "docker.image is empty"},
		"another":                 {func(s *Sandbox) { s.Driver = "chroot" }, "allowed: local, docker, apptainer"},
	} {
		s := Default().Sandbox
		c.change(&s)
		err := s.validate()
		if (err == nil) != (c.words == "") || err != nil && (milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
