package dataset

import (
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

var sweBenchLite = &Format{
	Name:   "swe-bench-lite",
	About:  "SWE-bench Lite: 300 rows of SWE-bench; its columns are SWE-bench's, so its name is told from the file's",
	Source: "princeton-nlp/SWE-bench_Lite on the hub",
	Needs:  classicNeeds,
	Match: func(r *Row) int {
		if name := strings.ToLower(r.File); knownElsewhere(r) || !strings.Contains(name, "swe-bench_lite") && !strings.Contains(name, "swe-bench-lite") {
			return 0
		}
		return 4
	},
	Map: func(r *Row, _ *Assets) (*milepost.Task, error) { return classic(r, classicImage, testbed) },
}
