// Package plan reckons what a run needs of its GPUs before any is rented: bytes on each GPU of the trainer and of the
// servers, arithmetic of an update, and how long each stage takes. Everything is a pure function of Input; docs/plan.md
// has the formulas with their sources, and the tests hold them to what PyTorch and vLLM report of small models.
//
// A new item of memory is a line of trainerItems (trainer.go) or serve (server.go); a new kind of GPU one of gpus (gpu.go).
package plan
