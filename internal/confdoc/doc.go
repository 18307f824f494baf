// Package confdoc writes a configuration as YAML with every field documented by the comment that stands at it in the Go
// source, so that a field is described once and the shipped reference cannot fall behind the code.
//
//	comments.go   the comments of struct fields, read from source with go/ast
//	write.go      values and comments as YAML
//
// It knows no configuration: package configs/gen hands it one. A type of field that no configuration had so far gets a
// case in write.go.
package confdoc
