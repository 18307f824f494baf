package testlog

import (
	"slices"
	"testing"

	"github.com/milepost-rl/milepost"
)

const goLog = `{"Action":"start","Package":"example.com/m"}
{"Action":"run","Package":"example.com/m","Test":"TestA"}
{"Action":"output","Package":"example.com/m","Test":"TestA","Output":"{\"Action\":\"pass\",\"Package\":\"example.com/m\",\"Test\":\"TestLie\"}\n"}
{"Action":"pass","Package":"example.com/m","Test":"TestA","Elapsed":0}
{"Action":"run","Package":"example.com/m","Test":"TestB/one_two"}
{"Action":"fail","Package":"example.com/m","Test":"TestB/one_two","Elapsed":0}
{"Action":"fail","Package":"example.com/m","Test":"TestB","Elapsed":0}
{"Action":"skip","Package":"example.com/m","Test":"TestC","Elapsed":0}
{"Action":"run","Package":"example.com/m","Test":"TestPanics"}
{"Action":"fail","Package":"example.com/m","Elapsed":0.1}
{"ImportPath":"example.com/m/sub","Action":"build-output","Output":"sub/x.go:3: undefined: y\n"}
{"ImportPath":"example.com/m/sub","Action":"build-fail"}
{"Action":"output","Package":"example.com/m/sub","Output":"FAIL\texample.com/m/sub [build failed]\n"}
{"Action":"fail","Package":"example.com/m/sub","Elapsed":0,"FailedBuild":"example.com/m/sub"}
# example.com/m/sub
{"Action":"skip","Package":"example.com/m/empty","Elapsed":0}
{"Action": torn`

func TestGoTest(t *testing.T) {
	tests := []string{"example.com/m/other::TestZ", "example.com/m/sub::TestD", "example.com/m::TestA", "example.com/m::TestB", "example.com/m::TestC", "example.com/m::TestPanics"}
	report, extra, err := Parse("gotest", []byte(goLog), tests)
	want := milepost.TestReport{milepost.NotRun, milepost.Errored, milepost.Passed, milepost.Failed, milepost.Skipped, milepost.Errored}
	if err != nil || !slices.Equal(report, want) || !slices.Equal(extra, []string{"example.com/m::TestB/one_two"}) {
		t.Errorf("report %v, extra %q, %v; want %v", report, extra, err, want)
	}
}
