package dataset

import (
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

var sweGym = &Format{
	Name:   "swe-gym",
	About:  "SWE-Gym: 2,438 rows of eleven Python projects; SWE-bench's columns, told by the project",
	Source: "SWE-Gym/SWE-Gym on the hub",
	Needs:  classicNeeds,
	Match: func(r *Row) int {
		v, ok := r.cols["repo"]
		if knownElsewhere(r) || !ok || kindOf(v) != "a string" || !gymRepos[strings.ToLower(unquote(v))] {
			return 0
		}
		return 5
	},
	Map: func(r *Row, _ *Assets) (*milepost.Task, error) { return classic(r, gymImage, testbed) },
}

// gymRepos are the projects of the data set; SWE-bench has none of them.
var gymRepos = map[string]bool{"getmoto/moto": true, "project-monai/monai": true, "pandas-dev/pandas": true, "python/mypy": true,
	"dask/dask": true, "iterative/dvc": true, "conan-io/conan": true, "pydantic/pydantic": true, "facebookresearch/hydra": true,
	"bokeh/bokeh": true, "modin-project/modin": true}

// gymImage is the image of a row. Source: the data set's page.
func gymImage(id string) string {
	return "xingyaoww/sweb.eval.x86_64." + strings.ToLower(strings.ReplaceAll(id, "__", "_s_"))
}
