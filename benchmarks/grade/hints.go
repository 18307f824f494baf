package grade

import (
	"regexp"
)

// Source: swebench 5.0.2, harness/infra_failure.py: signs in a log that the environment broke. They are advice for a
// person; a verdict does not depend on them.

// Tiers of a hint.
const (
	TierEnvironment = "environment" // a patch of source code can hardly cause it
	TierAmbiguous   = "ambiguous"   // may be the patch's doing
)

// hints in order; the first that matches counts.
var hints = []struct {
	name, tier string
	sign       *regexp.Regexp
}{
	{"browser_launch_failed", TierEnvironment, regexp.MustCompile(`Failed to (?:launch|connect to the bus)`)},
	{"display_unavailable", TierEnvironment, regexp.MustCompile(`cannot open display|Missing X server|unable to open X display`)},
	{"out_of_memory", TierEnvironment, regexp.MustCompile(`(?m)Cannot allocate memory|OutOfMemoryError|^Killed$`)},
	{"container_unavailable", TierEnvironment, regexp.MustCompile(`Error response from daemon|Cannot connect to the Docker daemon`)},
	{"network_unreachable", TierEnvironment, regexp.MustCompile(`Could not resolve host|Temporary failure in name resolution`)},
	{"missing_module", TierAmbiguous, regexp.MustCompile(`Cannot find module|MODULE_NOT_FOUND|ModuleNotFoundError`)},
	{"no_tests_collected", TierAmbiguous, regexp.MustCompile(`no tests ran|collected 0 items`)},
	{"tests_timed_out", TierAmbiguous, regexp.MustCompile(`Timeout error: \d+ seconds exceeded`)},
}

// hint names the first sign of a broken environment in a text.
func hint(text string) (name, tier string) {
	for _, h := range hints {
		if h.sign.MatchString(text) {
			return h.name, h.tier
		}
	}
	return "", ""
}
