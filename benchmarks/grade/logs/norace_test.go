//go:build !race

package logs

const raced = false
