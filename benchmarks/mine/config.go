package mine

import (
	"cmp"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

// Config says where tasks are looked for: in a git history (Repo), or between two releases (Old and New). Zero fields take
// the default in brackets.
type Config struct {
	Repo       string // folder of a git repository
	Revision   string // newest commit that is looked at [HEAD]
	MaxCommits int    // commits looked at, from the newest [500]

	Old, New               string // NAME==VERSION of both releases, NAME being the same
	OldArchive, NewArchive string // .tar.gz of their source distributions, in place of downloads

	Count      int           // tasks at most; 0 takes all
	MaxFiles   int           // changed files of code in a commit at most; releases have no bound [10]
	MaxLines   int           // changed lines of code in a commit at most [500]
	MinMessage int           // letters of a message that says enough [20]
	Runs       int           // how often each side is run [3]
	Split      string        // train, validation, heldout or ""
	Image      string        // environment identity written into the tasks [local:python3]
	Cache      string        // folder of downloaded distributions; wanted for downloads
	Python     string        // interpreter with pip that downloads [python3]
	Timeout    time.Duration // of one run of the tests [ten times a good run, at least 10 s]
}

// Validate reports the first field that is out of range once zero fields have their defaults, as KindInvalid.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c Config) withDefaults() (Config, error) {
	c.Revision = cmp.Or(c.Revision, "HEAD")
	c.MaxCommits = cmp.Or(c.MaxCommits, 500)
	c.MaxFiles = cmp.Or(c.MaxFiles, 10)
	c.MaxLines = cmp.Or(c.MaxLines, 500)
	c.MinMessage = cmp.Or(c.MinMessage, 20)
	c.Runs = cmp.Or(c.Runs, 3)
	c.Image = cmp.Or(c.Image, "local:python3")
	c.Python = cmp.Or(c.Python, "python3")
	return c, c.validate()
}

func (c Config) validate() error {
	bad := func(format string, a ...any) error {
		return milepost.E("mine: configuration", milepost.KindInvalid, format, a...)
	}
	switch {
	case (c.Repo == "") == (c.Old == "" && c.New == ""):
		return bad("either a repository or two releases are wanted, and not both")
	case c.Repo == "" && (!pypkg.Pinned(c.Old) || !pypkg.Pinned(c.New)):
		return bad(`releases %q and %q are not NAME==VERSION each, for example "humanize==4.8.0"`, c.Old, c.New)
	case c.Repo == "" && nameOf(c.Old) != nameOf(c.New):
		return bad("%s and %s are releases of different packages", c.Old, c.New)
	case c.Repo == "" && c.Cache == "" && (c.OldArchive == "" || c.NewArchive == ""):
		return bad("cache is empty; a folder for downloaded distributions is wanted, or both archives")
	case !milepost.ValidSplit(c.Split):
		return bad("split %q is not one of train, validation, heldout or empty", c.Split)
	}
	for _, x := range []struct {
		name      string
		value, lo int
	}{{"max_commits", c.MaxCommits, 1}, {"count", c.Count, 0}, {"max_files", c.MaxFiles, 1}, {"max_lines", c.MaxLines, 1},
		{"min_message", c.MinMessage, 1}, {"runs", c.Runs, 1}} {
		if x.value < x.lo {
			return bad("%s is %d; at least %d is wanted", x.name, x.value, x.lo)
		}
	}
	return nil
}
