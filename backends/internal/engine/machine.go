package engine

import (
	"bufio"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// machine is where the system tells about itself: the root of its file system.
var machine = os.DirFS("/")

// availableMemory is what this process can take without swapping and without reaching a limit of its control groups, in bytes; false if the system does not tell.
func availableMemory(root fs.FS) (int64, bool) {
	available, known := meminfo(root, "MemAvailable:")
	for _, group := range controlGroups(root) {
		limit, ok := number(root, group.limit)
		if !ok {
			continue // none: "max", or not there
		}
		used, _ := number(root, group.usage)
		if reclaimable, ok := statistic(root, group.statistics, group.reclaimable); ok {
			used -= reclaimable
		}
		if free := max(0, limit-used); !known || free < available {
			available, known = free, true
		}
	}
	return available, known
}

// controlGroup names the files of a group that limits memory.
type controlGroup struct{ limit, usage, statistics, reclaimable string }

// controlGroups gives this process's groups with all groups above them, of both generations of the interface.
func controlGroups(root fs.FS) []controlGroup {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	var groups []controlGroup
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			switch {
			case parts[0] == "0" && parts[1] == "":
				dir := path.Join("sys/fs/cgroup", at)
				groups = append(groups, controlGroup{path.Join(dir, "memory.max"), path.Join(dir, "memory.current"), path.Join(dir, "memory.stat"), "inactive_file"})
			case parts[1] == "memory":
				dir := path.Join("sys/fs/cgroup/memory", at)
				groups = append(groups, controlGroup{path.Join(dir, "memory.limit_in_bytes"), path.Join(dir, "memory.usage_in_bytes"), path.Join(dir, "memory.stat"), "total_inactive_file"})
			}
			if at == "/" {
				break
			}
		}
	}
	return groups
}

// number reads a file that holds one.
func number(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// statistic reads one line "name number" of a file.
func statistic(root fs.FS, file, name string) (int64, bool) {
	f, err := root.Open(file)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == name {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// meminfo reads one line of /proc/meminfo, in bytes.
func meminfo(root fs.FS, name string) (int64, bool) {
	kib, ok := statistic(root, "proc/meminfo", name)
	return kib << 10, ok
}
