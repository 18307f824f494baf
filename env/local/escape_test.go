package local

import (
	"os"
	"testing"

	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

func TestEscapes(t *testing.T) {
	d := open(t, Config{})
	grouped := d.cgroups != nil
	envtest.Escapes(t, envtest.Confined{
		New:        func(t *testing.T) driver.Driver { return open(t, Config{TmpSize: 4 << 20}) },
		ExtraProcs: bwrapProcs,
		Grouped:    grouped,
		Quota:      d.report.Quota,
	})
}

// TestEscapesUnconfined shows that the attempts succeed where nothing confines them.
func TestEscapesUnconfined(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the attempts are root's")
	}
	envtest.Control(t, open(t, Config{Unconfined: true, Workspace: WorkspaceCopy}))
}

func owned() envtest.Owned {
	return envtest.Owned{
		New:    func(root string) (driver.Driver, error) { return New(Config{Root: root, Python: python()}) },
		Killed: "TestKilledOwner",
	}
}

func TestKilledOwner(t *testing.T) { envtest.RunOwner(t, owned()) }
func TestNothingLeft(t *testing.T) { envtest.Left(t, owned()) }
