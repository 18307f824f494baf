// Package trainerbridge is the Go side of the PyTorch trainer: the gRPC client that controls it, the Arrow files that
// carry batches to it, and the configuration of its operations. It knows no credit rule; it moves per-token streams.
//
//	proto/       trainer.proto and batch.schema, the one protocol; generate.sh makes trainerpb and milepost_trainer/pb
//	trainerpb/   generated Go code
//	python/      the trainer itself, package milepost_trainer, and its pinned environments
//	weights/     carries exported weights to the samplers
//
// A new operation of the trainer is a new rpc in proto/trainer.proto, a method of [Client], and a method of the Python
// class Trainer; a new loss or aggregation is one more entry in milepost_trainer/loss.py and in [LossConfig].
package trainerbridge
