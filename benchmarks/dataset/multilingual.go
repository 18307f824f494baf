package dataset

import (
	"path"

	milepost "github.com/milepost-rl/milepost"
)

var sweBenchMultilingual = &Format{
	Name:   "swe-bench-multilingual",
	About:  "SWE-bench Multilingual: 300 rows in nine languages; SWE-bench's columns, told by the language of the patch",
	Source: "SWE-bench/SWE-bench_Multilingual on the hub",
	Needs:  classicNeeds,
	Match: func(r *Row) int {
		if knownElsewhere(r) || languageOf(r) == "" {
			return 0
		}
		return 2
	},
	Map: func(r *Row, _ *Assets) (*milepost.Task, error) {
		t, err := classic(r, classicImage, testbed)
		if t != nil {
			setMeta(t, "language", languageOf(r))
		}
		return t, err
	},
}

// languages are those of the data set, by the ending of a source file.
var languages = map[string]string{".c": "c", ".h": "c", ".cc": "c++", ".cpp": "c++", ".hpp": "c++", ".go": "go", ".java": "java",
	".js": "javascript", ".jsx": "javascript", ".ts": "typescript", ".tsx": "typescript", ".php": "php", ".rb": "ruby", ".rs": "rust"}

// languageOf is the language of the first file of the patch that is in one of the data set's; "" where there is none or
// the patch touches Python.
func languageOf(r *Row) string {
	v, ok := r.cols["patch"]
	if !ok || kindOf(v) != "a string" {
		return ""
	}
	files, err := filesOf(unquote(v))
	if err != nil {
		return ""
	}
	found := ""
	for _, f := range append(files.changed, files.created...) {
		switch l := languages[path.Ext(f)]; {
		case path.Ext(f) == ".py":
			return ""
		case found == "":
			found = l
		}
	}
	return found
}
