package dataset

import (
	milepost "github.com/milepost-rl/milepost"
)

var sweBenchVerified = &Format{
	Name:   "swe-bench-verified",
	About:  "SWE-bench Verified: 500 rows that people checked, with column difficulty",
	Source: "princeton-nlp/SWE-bench_Verified on the hub",
	Needs:  append([]string{"difficulty"}, classicNeeds...),
	Match: func(r *Row) int {
		if knownElsewhere(r) {
			return 0
		}
		return 3
	},
	Map: func(r *Row, _ *Assets) (*milepost.Task, error) { return classic(r, classicImage, testbed) },
}
