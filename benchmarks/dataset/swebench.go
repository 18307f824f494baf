package dataset

import (
	milepost "github.com/milepost-rl/milepost"
)

var sweBench = &Format{
	Name:   "swe-bench",
	About:  "SWE-bench: issues of twelve Python projects, classic rows and those of version 5",
	Source: "princeton-nlp/SWE-bench on the hub; swebench 5.0.2",
	Needs:  classicNeeds,
	Match: func(r *Row) int {
		if knownElsewhere(r) {
			return 0
		}
		return 1
	},
	Map: func(r *Row, _ *Assets) (*milepost.Task, error) { return classic(r, classicImage, testbed) },
}

// knownElsewhere reports columns that SWE-bench itself never had: a row with one is of a data set made after its model.
func knownElsewhere(r *Row) bool {
	for _, c := range []string{"install_config", "dockerhub_tag", "image_name", "docker_image", "image_url"} {
		if _, ok := r.cols[c]; ok {
			return true
		}
	}
	return false
}
