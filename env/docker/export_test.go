package docker

// AgentTar is agentTar, for tests that make a container themselves.
var AgentTar = agentTar
