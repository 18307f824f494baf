// Package guest is the driver's side of sandboxes whose process 1 is the agent (package docker/agent), whatever
// technology made them: files, changes and commands over one multiplexed connection. A driver makes the container, connects
// it, and says through [Host] what it alone can do; docker and apptainer do.
//
//	link.go     the connection, and one request on it
//	sandbox.go  Sandbox: files, changes, reset
//	process.go  one command, from the driver's side
//	limits.go   what a sandbox as a whole may take
//	image.go    workspaces whose files come from the image: base volumes, trees and archives
//	base.go     a base repository as a tar stream, and the stream that comes back
package guest
