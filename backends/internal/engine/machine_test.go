package engine

import (
	"testing"
	"testing/fstest"
)

func TestAvailableMemory(t *testing.T) {
	const meminfo = "MemTotal:       32000 kB\nMemAvailable:    16000 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64 // -1: unknown
	}{
		{"nothing is told", nil, -1},
		{"no groups", map[string]string{"proc/meminfo": meminfo}, 16000 << 10},
		{"a group without a limit", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "1\n"}, 16000 << 10},
		{"a limit of the group above", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "9000\n", "sys/fs/cgroup/a/memory.current": "5000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 4000\ninactive_file 1500\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 5500},
		{"the limit is used up", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "9000\n", "sys/fs/cgroup/memory.current": "9500\n"}, 0},
		{"the first generation", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "8000\n",
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes": "3000\n", "sys/fs/cgroup/memory/x/memory.stat": "total_inactive_file 1000\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 6000},
		{"nonsense", map[string]string{"proc/meminfo": "MemAvailable: many kB\n", "proc/self/cgroup": "0\n:::\n0::/../..\n", "sys/fs/cgroup/memory.max": "x"}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range c.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, ok := availableMemory(root)
			if !ok {
				got = -1
			}
			if got != c.want {
				t.Errorf("%d bytes, want %d", got, c.want)
			}
		})
	}
}
