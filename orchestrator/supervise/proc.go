package supervise

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// stat is what is used of /proc/PID/stat.
type stat struct {
	state byte // R, S, D, Z (zombie), X (dead) …
	group int  // process group id
	start uint64
}

// readStat reads /proc/PID/stat; the process's name may hold spaces and parentheses, so fields count from the last ')'.
func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(data))
}

func parseStat(line string) (stat, error) {
	_, rest, ok := cutLast(line, ")")
	f := strings.Fields(rest)
	// state is field 3 of the line, pgrp 5, starttime 22.
	if !ok || len(f) < 20 || len(f[0]) != 1 {
		return stat{}, fmt.Errorf("unexpected form of /proc stat line %q", line)
	}
	group, err := strconv.Atoi(f[2])
	if err != nil {
		return stat{}, err
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return stat{}, err
	}
	return stat{state: f[0][0], group: group, start: start}, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// members are the living processes of a group.
func members(group int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil && s.group == group && !s.dead() {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
