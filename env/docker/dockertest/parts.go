package dockertest

// Rootfs writes the root file system of [Image] as a tar file, for tests that need no engine for it.
func Rootfs(to string) error { return makeRootfs(to) }

// Agent builds the program that runs as process 1, likewise.
func Agent(to string) error { return buildAgent(to) }
