package plan

import (
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// GPU is one kind of accelerator.
type GPU struct {
	Name      string  `json:"name"`
	Memory    float64 `json:"memory_bytes"` // that a program can have
	FLOPs     float64 `json:"flops"`        // dense bfloat16 operations a second
	Bandwidth float64 `json:"bandwidth"`    // of its memory, bytes a second
	Link      float64 `json:"link"`         // to the GPUs of its node, bytes a second each way
}

const gib = 1 << 30

// gpus are the makers' figures, dense, without sparsity; memory is what nvidia-smi reports.
var gpus = []GPU{
	{"a100-40g", 39.4 * gib, 312e12, 1.555e12, 300e9},
	{"a100-80g", 79.2 * gib, 312e12, 2.039e12, 300e9},
	{"h100-80g", 79.2 * gib, 989e12, 3.35e12, 450e9},
	{"h200-141g", 139.8 * gib, 989e12, 4.8e12, 450e9},
	{"b200-180g", 178.3 * gib, 2250e12, 8e12, 900e9},
	{"l40s-48g", 44.5 * gib, 362e12, .864e12, 32e9},
}

// GPUs lists the names that FindGPU knows.
func GPUs() []string {
	var names []string
	for _, g := range gpus {
		names = append(names, g.Name)
	}
	return names
}

// FindGPU is a kind by its name.
func FindGPU(name string) (GPU, error) {
	i := slices.IndexFunc(gpus, func(g GPU) bool { return g.Name == name })
	if i < 0 {
		return GPU{}, milepost.E("plan: gpu", milepost.KindInvalid, "no GPU is called %q; known are: %s; or give --gpu-memory, --gpu-flops and --gpu-bandwidth", name, strings.Join(GPUs(), ", "))
	}
	return gpus[i], nil
}
