// Package tracker hands a run's metrics to experiment trackers (Weights & Biases, MLflow, trackio), each by a process of
// its own that runs the tracker's own Python package (milepost_trainer.trackers).
//
//	config.go   which trackers, and what they are told
//	feed.go     one tracker's process, and what it is behind
//
// A new tracker is a field of Config, a case of enabled, and a class in trackers.py. TensorBoard needs neither process
// nor configuration: its event files are always written (package tfevents).
package tracker

import (
	"net/url"
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// Config says which trackers a run's metrics go to. Keys are never in it: the packages read them from the environment
// (WANDB_API_KEY, MLFLOW_TRACKING_USERNAME and _PASSWORD, HF_TOKEN).
type Config struct {
	Python  string        `yaml:"python"`  // Python interpreter with the trackers' packages; "" = the pinned environment (trainer_bridge/python/envs/install trackers)
	Grace   time.Duration `yaml:"grace"`   // how long the end of a run waits for trackers that are behind
	WandB   WandB         `yaml:"wandb"`   // Weights & Biases
	MLflow  MLflow        `yaml:"mlflow"`  // MLflow
	Trackio Trackio       `yaml:"trackio"` // trackio, local or on a Hugging Face Space
}

// WandB is Weights & Biases.
type WandB struct {
	Enabled bool     `yaml:"enabled" json:"-"`       // send metrics there
	Mode    string   `yaml:"mode" json:"mode"`       // online, or offline (files in the run folder, for wandb sync)
	Project string   `yaml:"project" json:"project"` // project
	Entity  string   `yaml:"entity" json:"entity"`   // user or team; "" = the key's own
	Group   string   `yaml:"group" json:"group"`     // group of runs; "" = none
	Tags    []string `yaml:"tags" json:"tags"`       // tags of the run
}

// MLflow is an MLflow server or store.
type MLflow struct {
	Enabled    bool   `yaml:"enabled" json:"-"`             // send metrics there
	URI        string `yaml:"uri" json:"uri"`               // tracking URI, for example https://HOST or sqlite:////PATH; "" = $MLFLOW_TRACKING_URI, or else a store in the run folder
	Experiment string `yaml:"experiment" json:"experiment"` // experiment, made where it is missing
}

// Trackio is trackio.
type Trackio struct {
	Enabled bool   `yaml:"enabled" json:"-"`         // send metrics there
	Project string `yaml:"project" json:"project"`   // project
	SpaceID string `yaml:"space_id" json:"space_id"` // Hugging Face Space; "" = local, where `trackio show` finds it ($TRACKIO_DIR)
}

// Default is every default: no tracker.
func Default() Config {
	const project = "milepost"
	return Config{Grace: 30 * time.Second, WandB: WandB{Mode: "online", Project: project}, MLflow: MLflow{Experiment: project}, Trackio: Trackio{Project: project}}
}

// Validate checks every field.
func (c Config) Validate() error {
	const op = "tracker: configuration"
	u, err := url.Parse(c.MLflow.URI)
	switch {
	case c.Grace < 0:
		return milepost.E(op, milepost.KindInvalid, "grace is %s; it must not be negative", c.Grace)
	case c.WandB.Mode != "online" && c.WandB.Mode != "offline":
		return milepost.E(op, milepost.KindInvalid, "wandb.mode is %q; allowed: online, offline", c.WandB.Mode)
	case c.WandB.Project == "" || strings.ContainsAny(c.WandB.Project, `/\#?%:`):
		return milepost.E(op, milepost.KindInvalid, `wandb.project is %q; it must not be empty and not hold any of /\#?%%:`, c.WandB.Project)
	case err != nil:
		return milepost.E(op, milepost.KindInvalid, "mlflow.uri: %v", err)
	case u.User != nil:
		return milepost.E(op, milepost.KindInvalid, "mlflow.uri holds a user or password; give them by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
	case c.MLflow.Experiment == "" || c.Trackio.Project == "":
		return milepost.E(op, milepost.KindInvalid, "mlflow.experiment and trackio.project must not be empty")
	}
	return nil
}

// Any reports whether a tracker is enabled.
func (c Config) Any() bool { return len(c.enabled()) > 0 }

// enabled are the options of the enabled trackers, by the names that trackers.py knows, in order.
func (c Config) enabled() []options {
	all := []options{{"wandb", c.WandB}, {"mlflow", c.MLflow}, {"trackio", c.Trackio}}
	on := []bool{c.WandB.Enabled, c.MLflow.Enabled, c.Trackio.Enabled}
	i := -1
	return slices.DeleteFunc(all, func(options) bool { i++; return !on[i] })
}

type options struct {
	name   string
	values any
}
