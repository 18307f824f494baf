// Package modeldir reads what a Hugging Face model directory says of its model without loading it: the shape, with the
// numbers of parameters and cached bytes that follow from it, and the length of its context, which YaRN can stretch.
//
// A family with other layers is one more case in Shape (shape.go) and one more preset (presets.go), held to the counts of
// transformers by a test.
package modeldir
