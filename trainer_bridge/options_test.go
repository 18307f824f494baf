package trainerbridge

import (
	"testing"

	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
	"google.golang.org/protobuf/proto"
)

func TestOptionsOnTheWire(t *testing.T) {
	o := Options{Lora: LoraConfig{Enabled: true, Rank: 8, Alpha: 16, TargetModules: []string{"q_proj"}}, Kernels: "liger", ContextParallel: 4, RoutingReplay: true}
	want := &trainerpb.Options{Lora: &trainerpb.LoraConfig{Rank: 8, Alpha: 16, TargetModules: []string{"q_proj"}}, Kernels: "liger", ContextParallel: 4, RoutingReplay: true}
	if got := o.proto(); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := (Options{}).proto(); !proto.Equal(got, &trainerpb.Options{}) {
		t.Errorf("the plain trainer's are %v", got)
	}
}
