package docker

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/milepost-rl/milepost/env/owner"
)

// Labels of everything the driver makes on an engine. They are part of the request that makes it, so nothing is ever
// there without.
const (
	labelOwner   = "milepost.owner" // one driver: pid-start-count
	labelPID     = "milepost.owner.pid"
	labelStart   = "milepost.owner.start"
	labelBoot    = "milepost.owner.boot"
	labelSpace   = "milepost.owner.space" // namespace in which pid counts
	labelLease   = "milepost.lease"
	labelSandbox = "milepost.sandbox" // the Spec's name, for people
	labelMade    = "milepost.made"    // Unix seconds, by the owner's clock
)

// identity names one driver of one process.
type identity struct {
	process owner.Process
	name    string
	lease   time.Duration
}

var drivers atomic.Int64

func newIdentity(lease time.Duration) (identity, error) {
	p, err := owner.Current()
	if err != nil {
		return identity{}, err
	}
	boot := p.Boot
	if len(boot) > 8 {
		boot = boot[:8]
	}
	return identity{p, fmt.Sprintf("%s-%d-%s-%d", boot, p.PID, p.Start, drivers.Add(1)), lease}, nil
}

func (id identity) labels(now time.Time) map[string]string {
	return map[string]string{
		labelOwner: id.name, labelPID: strconv.Itoa(id.process.PID), labelStart: id.process.Start, labelBoot: id.process.Boot,
		labelSpace: owner.Space(), labelLease: id.lease.String(), labelMade: strconv.FormatInt(now.Unix(), 10),
	}
}

// fate says what is known of an owner.
type fate int

const (
	alive     fate = iota
	dead           // it was a process of this machine
	elsewhere      // of another machine, or of another container: only time tells
)

// fateOf reads the labels of something that another driver made.
func fateOf(labels map[string]string) fate {
	if labels[labelBoot] != owner.Boot() || labels[labelSpace] != owner.Space() {
		return elsewhere
	}
	pid, err := strconv.Atoi(labels[labelPID])
	if err != nil {
		return elsewhere
	}
	if (owner.Process{PID: pid, Start: labels[labelStart], Boot: labels[labelBoot]}).Alive() {
		return alive
	}
	return dead
}

// age is how long ago something was made, by its owner's clock; 0 where the label does not say.
func age(labels map[string]string, now time.Time) time.Duration {
	sec, err := strconv.ParseInt(labels[labelMade], 10, 64)
	if err != nil {
		return 0
	}
	return now.Sub(time.Unix(sec, 0))
}
