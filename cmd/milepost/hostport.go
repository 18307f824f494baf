package main

import (
	"fmt"
	"net"
	"strconv"
)

// hostPort reads a flag's HOST:PORT with a port of 1 to 65535.
func hostPort(flag, text string) (string, int, error) {
	host, port, ok := splitPort(text)
	if !ok || port == 0 {
		return "", 0, &usageError{fmt.Errorf("%s is %q; allowed: HOST:PORT", flag, text)}
	}
	return host, port, nil
}

// splitPort splits HOST:PORT; port 0, any free one, is one, too.
func splitPort(text string) (host string, port int, ok bool) {
	host, name, err := net.SplitHostPort(text)
	port, bad := strconv.Atoi(name)
	return host, port, err == nil && bad == nil && port >= 0 && port <= 65535
}
