package lan

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// insideVariable tells a test binary that it has namespaces of its own.
const insideVariable = "TINSMITH_TEST_LAN"

// ids are how many users and groups root keeps in its namespace: a server that does not run as root needs another one.
const ids = 1 << 16

var (
	verdict = regexp.MustCompile(`^(=== .*|--- (PASS|FAIL|SKIP): .*|PASS|FAIL|ok .*)$`)
	said    = regexp.MustCompile(`(?m)^ +[\w.]+\.go:\d+: (.*)$`)
)

// Inside tells whether the test runs in namespaces of its own. Where it does not, the test binary runs it there, as another process, and the caller
// returns. Whatever that process starts ends with it, by the kernel, and so does its network: also when it is killed, or this one is. The test skips
// where there are no such namespaces.
func Inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		if err := run(nil, "ip", lines("link set lo up")); err != nil {
			t.Skipf("the network of a namespace cannot be set up: %v", err)
		}
		return true
	}
	for _, name := range []string{"ip", "tc"} {
		if program(name) == "" {
			t.Skipf("there is no program %s, which makes networks of namespaces (iproute2)", name)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, arguments(t)...)
	c.Env = append(os.Environ(), insideVariable+"=1")
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	c.SysProcAttr = namespaces()
	runtime.LockOSThread() // the process ends with the thread that began it
	defer runtime.UnlockOSThread()
	if err := c.Start(); err != nil {
		t.Skipf("no namespaces can be made here: %v", err)
	}
	err = c.Wait()
	text := told(output.String())
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if strings.Contains(output.String(), "--- SKIP: "+t.Name()+" ") {
		reason := said.FindAllStringSubmatch(text, -1)
		if len(reason) == 0 {
			t.Fatalf("it does not say why it skipped: %s", text)
		}
		t.Skip(reason[len(reason)-1][1])
	}
	if !strings.Contains(output.String(), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("it did not run: %s", output.String())
	}
	if text != "" {
		t.Log(text)
	}
	return false
}

// namespaces are of users, so that nobody has to be root, of processes, so that all end with the first one, and of the network.
func namespaces() *syscall.SysProcAttr {
	s := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	// PostgreSQL refuses to run as root, so nobody becomes root who is not.
	user, group, size := os.Getuid(), os.Getgid(), 1
	if user == 0 {
		group, size = 0, ids
		s.GidMappingsEnableSetgroups = true
	} else {
		const netAdmin, sysAdmin = 12, 21
		s.AmbientCaps = []uintptr{netAdmin, sysAdmin}
	}
	s.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: user, Size: size}}
	s.GidMappings = []syscall.SysProcIDMap{{ContainerID: group, HostID: group, Size: size}}
	return s
}

// arguments run the same test, once, with what else the flags of this run say. It ends before this one has to.
func arguments(t *testing.T) []string {
	args := []string{"-test.run", "^" + regexp.QuoteMeta(t.Name()) + "$", "-test.v", "-test.count", "1", "-test.paniconexit0"}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout", (time.Until(deadline) - 5*time.Second).String())
	}
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	return args
}

// told is what a test said, less what the test binary says around it.
func told(output string) string {
	var lines []string
	for line := range strings.Lines(output) {
		if line = strings.TrimRight(line, "\n"); !verdict.MatchString(line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "what it said in its namespaces:\n" + strings.Join(lines, "\n")
}

// program finds one of the system's, which are not in the path of everybody.
func program(name string) string {
	for _, place := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(place); err == nil {
			return path
		}
	}
	return ""
}
