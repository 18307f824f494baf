package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator"
)

// loadFlaky says which tests the run left out: those that the tasks' certificates found flaky.
func (d *Data) loadFlaky(f *orchestrator.Folder) error {
	tasks, err := optional(f.Tasks())
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(tasks)) {
		if flaky := tasks[id].Flaky; len(flaky) > 0 {
			d.Warnings = append(d.Warnings, Warning{Text: fmt.Sprintf("task %s: %d of %d tests are flaky by its certificate and count neither for potentials nor for verdicts: %s",
				id, len(flaky), len(tasks[id].Tests), strings.Join(flaky, ", "))})
		}
	}
	return nil
}
