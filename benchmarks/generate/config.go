package generate

import (
	"cmp"
	"path/filepath"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

// Config says which package to make a task from. Zero fields take the default in brackets.
type Config struct {
	Package  string        // NAME==VERSION on PyPI; with Archive, name and version of what it holds
	Archive  string        // .tar.gz of a source distribution, in place of a download
	Sources  []string      // modules to be written [every module of the package that is no test]
	Tests    []string      // test files that judge [all that pytest finds]
	Docs     []string      // documentation for the specification [README and what lies in docs/]
	MaxDocs  int           // bytes of documentation; what is beyond is left out and said so [60000]
	MinTests int           // fewer counted tests make no task [5]
	Runs     int           // how often each side is run [3]
	Split    string        // train, validation, heldout or ""
	Image    string        // environment identity written into the task [local:python3]
	Cache    string        // folder of downloaded distributions; wanted without Archive
	Python   string        // interpreter with pip that downloads and reads the modules [python3]
	Timeout  time.Duration // of one run of the tests [ten times a good run, at least 10 s]
}

// Validate reports the first field that is out of range once zero fields have their defaults, as KindInvalid.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c Config) withDefaults() (Config, error) {
	c.MaxDocs = cmp.Or(c.MaxDocs, 60000)
	c.MinTests = cmp.Or(c.MinTests, 5)
	c.Runs = cmp.Or(c.Runs, 3)
	c.Image = cmp.Or(c.Image, "local:python3")
	c.Python = cmp.Or(c.Python, "python3")
	return c, c.validate()
}

func (c Config) validate() error {
	bad := func(format string, a ...any) error {
		return milepost.E("generate: configuration", milepost.KindInvalid, format, a...)
	}
	switch {
	case !pypkg.Pinned(c.Package):
		return bad(`package %q is not NAME==VERSION, for example "inflection==0.5.1"`, c.Package)
	case c.Archive == "" && c.Cache == "":
		return bad("cache is empty; a folder for downloaded distributions is wanted, or an archive")
	case !milepost.ValidSplit(c.Split):
		return bad("split %q is not one of train, validation, heldout or empty", c.Split)
	case c.Runs < 1 || c.Runs > 100:
		return bad("runs is %d; allowed are 1 to 100", c.Runs)
	case c.MinTests < 1:
		return bad("min_tests is %d; at least 1 is wanted", c.MinTests)
	case c.MaxDocs < 0:
		return bad("max_docs is %d; at least 0 is wanted", c.MaxDocs)
	}
	for _, list := range [][]string{c.Sources, c.Tests, c.Docs} {
		for _, p := range list {
			if !filepath.IsLocal(p) {
				return bad("sources, tests, docs: %q is not a path relative to the distribution", p)
			}
		}
	}
	return nil
}
