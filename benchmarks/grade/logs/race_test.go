//go:build race

package logs

// raced: under the race detector sync.Pool drops what it is given now and then, and regexp allocates anew.
const raced = true
