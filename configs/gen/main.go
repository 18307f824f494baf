// Command gen writes configs/reference.yaml: every field of a configuration at its default, with the comment that stands
// at it in the source. `make generate` runs it from the top of the repository; the tests of package configs fail while
// the file is stale.
package main

import (
	"fmt"
	"os"

	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/confdoc"
)

const (
	module = "github.com/milepost-rl/milepost"
	output = "configs/reference.yaml"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run() error {
	b, err := configs.Reference(confdoc.NewSource(module, "."))
	if err != nil {
		return err
	}
	next := output + ".next"
	if err := os.WriteFile(next, b, 0o644); err != nil {
		return err
	}
	return os.Rename(next, output)
}
